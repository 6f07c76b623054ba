"""The tables of the journal: entries, and the rows and records that follow from them.

Another release may have written fields or values that this one refuses. The journal is intact
all the same (``verify`` compares the text), and the daemon must start for all other records.
Such a trainer becomes failed, with the reason. Of such a pilot, whose job may be on a node, all
readable fields are used. Nothing is written back, so a release that can read the record finds it
unchanged. For payloads of entries see ``JournalEntry.payload_if``.

``database`` creates the tables. ``tables`` writes the rows in the transaction of their entry, and
recomputes them from the first entry on to verify them.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

from bftrainer.model.canonical import CanonicalError, from_plain, parse, text_of, to_plain
from bftrainer.model.parts import NodePart
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState

T = TypeVar("T")
UNREADABLE: Final = "?"  # no user has this name, so a pilot of such a user serves nobody
_PILOT_ID = re.compile(r"p[0-9]{6,15}\Z")
_TRAINER_ID = re.compile(r"t[1-9][0-9]{0,14}\Z")
START: Final = "start"  # a daemon began an incarnation
SUBMIT: Final = "submit"
PILOT_ID: Final = "pilot-id"  # written by earlier releases: a pilot number was used
CAUGHT_UP: Final = "caught-up"  # records of entries that could not be written in time
CHECKPOINT: Final = "checkpoint"  # all trainers and pilots that are not over
OWN_KINDS: Final = frozenset({START, SUBMIT, PILOT_ID, CAUGHT_UP, CHECKPOINT})
HEAD_REVISION: Final = "0002"  # ``database.UPGRADES`` lead here


class PilotState(enum.StrEnum):
    """State of a pilot, as requested and observed."""

    REQUESTED = "requested"  # submitted to the batch system, or about to be
    RUNNING = "running"
    CANCELLED = "cancelled"  # cancellation requested, end not observed yet
    ENDED = "ended"

    @property
    def is_active(self) -> bool:
        """Return whether the pilot's job may still be in the queue or on a node."""
        return self is not PilotState.ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotRecord:
    """A pilot in the daemon's memory and in the journal's projection."""

    pilot_id: str  # "p000001", "p000002", ...; never reused
    node: str
    job_id: str | None  # None: not submitted yet, or the reply was lost
    public_key: str  # of its agent, CURVE, Z85
    requested_s: float
    time_limit_s: float
    owner: str  # whose pilot it is
    state: PilotState = PilotState.REQUESTED
    ended_s: float | None = None
    reason: str = ""  # why it is in this state, one sentence
    user: str = ""  # it runs as, and only whose trainers it serves; "": the daemon's, and all
    part: NodePart | None = None  # of the node, that it asks for; None: all of it
    ADDED: ClassVar = frozenset({"user", "part"})  # not written while unused; see CONTRIBUTING.md

    def __post_init__(self) -> None:
        """Refuse an id that is not of our numbering."""
        pilot_ordinal(self.pilot_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One line of the journal, with the records it changed."""

    seq: int  # 1, 2, 3, ... without gaps
    at_s: float
    incarnation: int
    kind: str
    payload: Any  # as dicts, lists and numbers, which entries share: not to be changed
    trainers: tuple[TrainerRecord, ...]
    pilots: tuple[PilotRecord, ...]
    sha256: str  # of this entry and the previous entry's hash

    def payload_as(self, cls: type[T]) -> T:
        """Return the payload as the class it was written from."""
        return from_plain(self.payload, cls)

    def payload_if(self, cls: type[T]) -> T | None:
        """Return the payload; None if another release wrote it in another form."""
        try:
            return self.payload_as(cls)
        except CanonicalError:
            return None


def pilot_ordinal(pilot_id: str) -> int:
    """Return 17 for "p000017"."""
    if not _PILOT_ID.match(pilot_id):
        raise ValueError(f"{pilot_id!r} is not a pilot id such as p000017")
    return int(pilot_id[1:])


def trainer_ordinal(trainer_id: str) -> int:
    """Return 3 for "t3"."""
    if not _TRAINER_ID.match(trainer_id):
        raise ValueError(f"{trainer_id!r} is not a trainer id such as t3")
    return int(trainer_id[1:])


def trainer_of(plain: Any) -> TrainerRecord:
    """Return the trainer; if unreadable, a failed one with its id, owner and the reason.

    Raises:
        CanonicalError: even its id is missing.
    """
    try:
        return from_plain(plain, TrainerRecord)
    except CanonicalError as problem:
        trainer_id = _word(plain, "trainer_id", "")
        if not trainer_id:
            raise
        spec = plain.get("spec")
        state, written_state = TrainerState.FAILED, _word(plain, "state", "")
        if written_state in {final.value for final in TrainerState if final.is_final}:
            state = TrainerState(written_state)
        submitted_s = plain.get("submitted_s")
        return TrainerRecord(
            trainer_id=trainer_id,
            spec=TrainerSpec(
                name=_word(spec, "name", "?"), user=_word(spec, "user", "?"), script="?"
            ),
            state=state,
            submitted_s=submitted_s if isinstance(submitted_s, float) else 0.0,
            reason=f"BFT-1028: this release cannot read it ({str(problem.cause)[:200]})"
            " Submit it again, or start the release that wrote it.",
        )


def pilot_of(plain: Any) -> PilotRecord:
    """Return the pilot; if unreadable, one with its id and all readable fields.

    Raises:
        CanonicalError: even its id is missing.
        ValueError: its id is not one of a pilot.
    """
    try:
        return from_plain(plain, PilotRecord)
    except CanonicalError:
        pilot_id = _word(plain, "pilot_id", "")
        if not pilot_id:
            raise
    pilot = PilotRecord(
        pilot_id=pilot_id,
        node=UNREADABLE,
        job_id=None,
        public_key="",
        requested_s=0.0,
        time_limit_s=0.0,
        owner=UNREADABLE,
        state=PilotState.ENDED,
        user=UNREADABLE if "user" in plain else "",
    )
    for name in plain.keys() & to_plain(pilot).keys():
        with contextlib.suppress(CanonicalError):
            pilot = from_plain({**to_plain(pilot), name: plain[name]}, PilotRecord)
    return pilot


def _word(plain: Any, name: str, otherwise: str) -> str:
    if not isinstance(plain, dict) or not isinstance(plain.get(name), str):
        return otherwise
    return str(plain[name])


OVER: Final = frozenset(
    {*(str(state) for state in TrainerState if state.is_final), str(PilotState.ENDED)}
)

metadata = MetaData()
# INTEGER makes it SQLite's row id; on other databases it would have 32 bits only.
_Seq = BigInteger().with_variant(Integer, "sqlite")

# The source of truth. Rows are appended, and removed from the beginning up to a checkpoint; each
# hash covers its row and the previous hash.
entries = Table(
    "entries",
    metadata,
    Column("seq", _Seq, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("payload", Text, nullable=False),
    Column("trainers", Text, nullable=False),  # records this entry changed, canonical JSON
    Column("pilots", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    Index("entries_by_kind", "kind", "seq"),
)

# Long parts of trainers' specs, to which records refer (``bftrainer.journal.texts``). A journal of
# an earlier release lacks the table; one that lacks it gets it.
texts = Table(
    "texts",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("text", Text, nullable=False),
)

# Projections: the latest state of each record, written in the transaction of its entry.
trainers = Table(
    "trainers",
    metadata,
    Column("trainer_id", String(16), primary_key=True),
    Column("ordinal", BigInteger, nullable=False, unique=True),  # FCFS order
    Column("state", String(16), nullable=False),
    Column("submitted_s", Double, nullable=False),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("record", Text, nullable=False),  # canonical JSON; the columns are for queries
    Column("seq", _Seq, ForeignKey("entries.seq"), nullable=False, index=True),
)

pilots = Table(
    "pilots",
    metadata,
    Column("pilot_id", String(16), primary_key=True),
    Column("ordinal", BigInteger, nullable=False, unique=True),
    Column("node", Text, nullable=False),
    Column("job_id", Text, nullable=True),
    Column("state", String(16), nullable=False, index=True),
    Column("owner", Text, nullable=False),
    Column("requested_s", Double, nullable=False),
    Column("ended_s", Double, nullable=True),
    Column("record", Text, nullable=False),
    Column("seq", _Seq, ForeignKey("entries.seq"), nullable=False, index=True),
)

# incarnation, last_pilot (greatest number given), head_seq, head_sha256
meta = Table(
    "meta",
    metadata,
    Column("key", String(32), primary_key=True),
    Column("value", Text, nullable=False),
)

# The schema's version; named by the tool that earlier releases migrated with.
version = Table(
    "alembic_version",
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
STATES = (trainers, pilots)


Row = dict[str, Any]


def row_of(table: Table, plain: Any, seq: int) -> Row:
    """Return a record's row in its table, whether or not this release can read the record."""
    row = {"state": plain["state"], "record": text_of(plain), "seq": seq}
    if table is trainers:
        return row | {
            "trainer_id": plain["trainer_id"],
            "ordinal": trainer_ordinal(plain["trainer_id"]),
            "submitted_s": plain["submitted_s"],
            "name": _printable(plain["spec"]["name"]),
            "owner": _printable(plain["spec"]["user"]),
        }
    job_id = plain.get("job_id")
    return row | {
        "pilot_id": plain["pilot_id"],
        "ordinal": pilot_ordinal(plain["pilot_id"]),
        "node": _printable(plain["node"]),
        "job_id": None if job_id is None else _printable(job_id),
        "owner": _printable(plain["owner"]),
        "requested_s": plain["requested_s"],
        "ended_s": plain.get("ended_s"),
    }


def _printable(text: str) -> str:
    """Replace characters that databases refuse; the record keeps the original."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()


def id_of(table: Table) -> str:
    """Return the name of a table's first column, which records have, too."""
    return table.columns.keys()[0]


@dataclass(slots=True, kw_only=True)
class Projection:
    """The state after some entries, kept as plain data until rows are requested."""

    incarnation: int = 0
    last_pilot: int = 0
    _is_begun: bool = False
    # By table: id -> record, number of its entry.
    _known: dict[Table, dict[str, tuple[Any, int]]] = field(
        default_factory=lambda: {table: {} for table in STATES}
    )

    def add(self, row: Row) -> None:
        """Apply the next entry.

        Raises:
            ValueError: a checkpoint contradicts the entries before it.
        """
        kind = row["kind"]
        payload = {}
        if kind in (START, CHECKPOINT, PILOT_ID):
            payload = parse(row["payload"])
        if kind == CHECKPOINT:
            self.last_pilot = int(payload["last_pilot"])
        if kind in (START, CHECKPOINT):
            self.incarnation = int(payload["incarnation"])
        elif kind == PILOT_ID:
            self._count(payload["pilot_id"])
        for table, records_of in self._known.items():
            records = {record[id_of(table)]: record for record in _items(row[table.name])}
            if kind == CHECKPOINT:  # it replaces the state
                if self._is_begun:
                    _compare(records_of, records)
                records_of.clear()
            for name, plain in records.items():
                records_of[name] = (plain, row["seq"])
            if table is pilots:
                for pilot_id in records:
                    self._count(pilot_id)
        self._is_begun = True

    def _count(self, pilot_id: str) -> None:
        self.last_pilot = max(self.last_pilot, pilot_ordinal(pilot_id))

    def rows(self, table: Table) -> dict[str, Row]:
        """Return the expected rows of a table by id."""
        records = self._known[table]
        return {name: row_of(table, plain, seq) for name, (plain, seq) in records.items()}


def _compare(known: dict[str, tuple[Any, int]], said: dict[str, Any]) -> None:
    for name in known.keys() | said.keys():
        plain, _ = known.get(name, (None, 0))
        is_left_out = name not in said and plain["state"] in OVER
        if not is_left_out and plain != said.get(name):
            raise ValueError(f"the checkpoint contradicts the entries of {name}")


def _items(text: str) -> Iterable[Any]:
    if text == "[]":  # of most entries
        return ()
    items: Iterable[Any] = parse(text)
    return items
