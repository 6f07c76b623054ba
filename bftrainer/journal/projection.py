"""The rows of the state tables that follow from the entries.

``journal`` writes these rows in the transaction of their entry; ``verify`` recomputes them from
the first entry on and compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from bftrainer.journal.records import PilotRecord, PilotState, pilot_ordinal, trainer_ordinal
from bftrainer.journal.unreadable import pilot_of, trainer_of
from bftrainer.model.canonical import parse, text_of, to_plain
from bftrainer.model.trainer import TrainerRecord, TrainerState

START: Final = "start"  # a daemon began an incarnation
SUBMIT: Final = "submit"
PILOT_ID: Final = "pilot-id"  # written by earlier releases: a pilot number was used
CAUGHT_UP: Final = "caught-up"  # records of entries that could not be written in time
CHECKPOINT: Final = "checkpoint"  # all trainers and pilots that are not over
OWN_KINDS: Final = frozenset({START, SUBMIT, PILOT_ID, CAUGHT_UP, CHECKPOINT})
OVER: Final = frozenset(
    {*(str(state) for state in TrainerState if state.is_final), str(PilotState.ENDED)}
)

Row = dict[str, Any]


def trainer_row(record: TrainerRecord, seq: int) -> Row:
    """Return the row of a trainer."""
    return _trainer_row(to_plain(record), seq)


def _trainer_row(plain: Any, seq: int) -> Row:
    """Return it as it was written, whether or not this release can read it."""
    return {
        "trainer_id": plain["trainer_id"],
        "ordinal": trainer_ordinal(plain["trainer_id"]),
        "state": plain["state"],
        "submitted_s": plain["submitted_s"],
        "name": _printable(plain["spec"]["name"]),
        "owner": _printable(plain["spec"]["user"]),
        "record": text_of(plain),
        "seq": seq,
    }


def pilot_row(record: PilotRecord, seq: int) -> Row:
    """Return the row of a pilot."""
    return _pilot_row(to_plain(record), seq)


def _pilot_row(plain: Any, seq: int) -> Row:
    """Return it as it was written, whether or not this release can read it."""
    job_id = plain.get("job_id")
    return {
        "pilot_id": plain["pilot_id"],
        "ordinal": pilot_ordinal(plain["pilot_id"]),
        "node": _printable(plain["node"]),
        "job_id": None if job_id is None else _printable(job_id),
        "state": plain["state"],
        "owner": _printable(plain["owner"]),
        "requested_s": plain["requested_s"],
        "ended_s": plain.get("ended_s"),
        "record": text_of(plain),
        "seq": seq,
    }


def trainers_from(text: str) -> tuple[TrainerRecord, ...]:
    """Return the trainers in an entry."""
    return tuple(trainer_of(plain) for plain in parse(text))


def pilots_from(text: str) -> tuple[PilotRecord, ...]:
    """Return the pilots in an entry."""
    return tuple(pilot_of(plain) for plain in parse(text))


def trainer_from(row_record: str) -> TrainerRecord:
    """Return the trainer in a row's ``record``."""
    return trainer_of(parse(row_record))


def pilot_from(row_record: str) -> PilotRecord:
    """Return the pilot in a row's ``record``."""
    return pilot_of(parse(row_record))


@dataclass(slots=True, kw_only=True)
class Projection:
    """The state after some entries, kept as plain data until rows are requested."""

    incarnation: int = 0
    last_pilot: int = 0
    _begun: bool = False
    _trainers: dict[str, tuple[Any, int]] = field(default_factory=dict)
    _pilots: dict[str, tuple[Any, int]] = field(default_factory=dict)

    def add(self, *, seq: int, kind: str, payload: str, trainers: str, pilots: str) -> None:
        """Apply the next entry.

        Raises:
            ValueError: a checkpoint contradicts the entries before it.
        """
        if kind == START:
            self.incarnation = int(parse(payload)["incarnation"])
        elif kind == CHECKPOINT:
            self._checkpoint(parse(payload), parse(trainers), parse(pilots))
        elif kind == PILOT_ID:
            self._count(parse(payload)["pilot_id"])
        for plain in _items(trainers):
            self._trainers[plain["trainer_id"]] = (plain, seq)
        for plain in _items(pilots):
            self._count(plain["pilot_id"])
            self._pilots[plain["pilot_id"]] = (plain, seq)
        self._begun = True

    def _checkpoint(self, said: Any, trainers: list[Any], pilots: list[Any]) -> None:
        """Replace the state by that of a checkpoint."""
        if self._begun:
            _compare(self._trainers, {plain["trainer_id"]: plain for plain in trainers})
            _compare(self._pilots, {plain["pilot_id"]: plain for plain in pilots})
        self._trainers.clear()
        self._pilots.clear()
        self.incarnation, self.last_pilot = int(said["incarnation"]), int(said["last_pilot"])

    def _count(self, pilot_id: str) -> None:
        self.last_pilot = max(self.last_pilot, pilot_ordinal(pilot_id))

    def trainer_rows(self) -> dict[str, Row]:
        """Return the expected rows of the table of trainers."""
        return {key: _trainer_row(plain, seq) for key, (plain, seq) in self._trainers.items()}

    def pilot_rows(self) -> dict[str, Row]:
        """Return the expected rows of the table of pilots."""
        return {key: _pilot_row(plain, seq) for key, (plain, seq) in self._pilots.items()}


def _compare(known: dict[str, tuple[Any, int]], said: dict[str, Any]) -> None:
    for name in known.keys() | said.keys():
        plain, _ = known.get(name, (None, 0))
        is_left_out = name not in said and plain["state"] in OVER
        if not is_left_out and plain != said.get(name):
            raise ValueError(f"the checkpoint contradicts the entries of {name}")


def _items(text: str) -> Iterable[Any]:
    return () if text == "[]" else parse(text)


def _printable(text: str) -> str:
    """Replace characters that databases refuse; the record keeps the original."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()
