"""Journals with a flipped bit, read in all ways in which the daemon and its verbs read one.

python -m tests.support.flips --every          # byte of a small journal
python -m tests.support.flips --random 10000   # bits of a large one
"""

from __future__ import annotations

import logging
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.cli.common import read_journal
from bftrainer.daemon import accounts
from bftrainer.daemon.decider import DECISION
from bftrainer.daemon.harm import monitor
from bftrainer.daemon.journal_page import JournalSource
from bftrainer.journal.backup import back_up, restore
from bftrainer.journal.journal import Journal
from bftrainer.journal.mark import JOURNAL_NAME, MARK_NAME
from bftrainer.journal.projection import PilotRecord
from bftrainer.journal.tables import ACCOUNT_SUMS
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import DecisionRecord
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerSpec
from tests.support.snapshots import T0
from tests.support.timelines import PLAN, input_of, nodes, pilot

INNER_TABLE = 5  # type of an inner page of a table's tree
SMALL_PAGE_BYTES = 512  # SQLite's smallest: a journal of all kinds of pages is then 20 kB
HARMLESS = ("BFT-1112",)  # of a page: no decision is left to show
REFUSALS = frozenset(
    {
        *("BFT-2127", "BFT-2202", "BFT-2203", "BFT-2205", "BFT-2206", "BFT-2207", "BFT-2213"),
        *("BFT-1581", "BFT-1582"),
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a flipped bit did that it must not."""

    bit: int  # of the file, from its begin
    way: str
    what: str


def write_journal(state: Path, *, n_rounds: int = 2, page_bytes: int = 0) -> Path:
    """Write a journal with every kind of row into a new state directory; return its file.

    Args:
        state: the directory.
        n_rounds: of entries; each is some 15 kB.
        page_bytes: of the file's pages; 0: SQLite's usual.
    """
    path = state / JOURNAL_NAME
    with Journal.open(path, clock=lambda: T0, mark_file=state / MARK_NAME) as journal:
        journal.begin_incarnation()
        spec = TrainerSpec(name="net", user="ada", script="/home/ada/train.py")
        for number in range(n_rounds):
            if number == n_rounds - 1:
                journal.checkpoint(T0)
            _write_round(journal, spec, number)
    if page_bytes:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in ("journal_mode=DELETE", f"page_size={page_bytes}"):
                connection.execute(f"PRAGMA {statement}")
            connection.execute("VACUUM")
            connection.execute("PRAGMA journal_mode=WAL")
    return path


def _write_round(journal: Journal, spec: TrainerSpec, number: int) -> None:
    record = journal.submit(spec, T0)
    [pilot_id] = journal.next_pilot_ids(1)
    asked = PilotRecord(
        pilot_id=pilot_id, node="n1", job_id="7", public_key="k", requested_s=T0,
        time_limit_s=60.0, owner="ada",
    )  # fmt: skip
    journal.append("launch", {"n": number, "x": "y" * 200}, pilots=[asked])
    idle = nodes(**dict.fromkeys([f"n{i}" for i in range(4)], NodeState.IDLE))
    for at_s in (T0, T0 + 10):
        given = input_of(idle, pilot("n1"), at_s=at_s + number, training={"n1": "t1"})
        decided = DecisionRecord(event=None, input=given, policy_hash="x", plan=PLAN, took_ms=1.0)
        journal.note_large(DECISION, decided)
    sums = accounts.Added.of({}, until_s=T0 + number, since_s=T0)
    journal.append(accounts.ADDED, sums)
    journal.append(ACCOUNT_SUMS, sums)
    journal.append("note", {"text": "x" * 300}, trainers=[record])


def content(path: Path) -> Any:
    """Return all that a journal says; it is open meanwhile."""
    with Journal.open(path, clock=lambda: T0, is_verified=False) as journal:
        entries = tuple(f"{entry.sha256} {entry.payload}" for entry in journal.entries())
        return entries, journal.trainers(), journal.pilots()


def _start(state: Path) -> None:
    """Do with the journal what a daemon does at its start."""
    with Journal.open(
        state / JOURNAL_NAME, clock=lambda: T0 + 60, mark_file=state / MARK_NAME
    ) as journal:
        journal.begin_incarnation()
        journal.trainers()
        journal.pilots(active_only=True)
        journal.ended_pilots(10)
        accounts.read(journal, T0)
        list(monitor.read_records(journal))
        monitor.read_state(journal)
        journal.latest(DECISION)
        journal.write_beside()
        journal.note("word", {"text": "x"})


def _verify(state: Path) -> None:
    with read_journal(state / JOURNAL_NAME, is_verified=False) as journal:
        journal.verify()


def _read(state: Path) -> None:
    """Read all entries, as ``replay``, ``report`` and ``account`` do."""
    with read_journal(state / JOURNAL_NAME, is_verified=False) as journal:
        for entry in journal.entries():
            entry.payload_if(DecisionRecord)
        accounts.read(journal, T0)
        journal.newest("launch", 3)


def _show(state: Path) -> None:
    source = JournalSource(state / JOURNAL_NAME)
    source.timeline(None)
    for slow in source.slow().values():
        slow.ask()


def _copy(state: Path) -> None:
    back_up(state / JOURNAL_NAME, state / "copy")
    restore(state / "copy", state)


WAYS: dict[str, Callable[[Path], None]] = {
    "verify": _verify,
    "read": _read,
    "page": _show,
    "backup": _copy,
    "daemon": _start,  # the last: it writes
}


class _Tracebacks(logging.Handler):
    """Log records with a traceback, which somebody would see on a terminal."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(f"logged: {record.getMessage()} {record.exc_info[1]!r}"[:300])


class Flipper:
    """One journal, damaged again and again."""

    def __init__(self, original: Path, scratch: Path) -> None:
        """``original``: the journal of a state directory; ``scratch``: a new directory."""
        self.data = original.read_bytes()
        self._mark = original.with_name(MARK_NAME).read_bytes()
        self._before = content(original)
        self._state = scratch
        self.outcomes: Counter[str] = Counter()

    def flipped(self, bit: int, ways: Iterable[str] = tuple(WAYS)) -> list[Finding]:
        """Flip a bit and read in these ways; return what went wrong."""
        damaged = bytearray(self.data)
        damaged[bit // 8] ^= 1 << bit % 8
        return [finding for way in ways for finding in self._read_in(way, bit, bytes(damaged))]

    def unharmed(self, way: str) -> str:
        """Read the whole journal; return the outcome."""
        assert not list(self._read_in(way, 0, self.data))
        return "read" if self.outcomes[f"{way} read"] else "refused"

    def _is_other(self, way: str, path: Path) -> bool:
        """Whether a journal that was read says something else than before it was damaged."""
        if way == "verify":
            return bool(content(path) != self._before)
        return way == "read" and content(path)[0] != self._before[0]

    def _read_in(self, way: str, bit: int, damaged: bytes) -> Iterator[Finding]:
        shutil.rmtree(self._state, ignore_errors=True)
        self._state.mkdir(mode=0o700)
        path = self._state / JOURNAL_NAME
        path.write_bytes(damaged)
        (self._state / MARK_NAME).write_bytes(self._mark)
        logged = _Tracebacks()
        logging.getLogger().addHandler(logged)
        try:
            WAYS[way](self._state)
            if self._is_other(way, path):
                yield Finding(bit, way, "it passed although the content is another")
            outcome = "read"
        except BftError as problem:
            outcome = problem.code
            if problem.code not in REFUSALS and not (way == "page" and problem.code in HARMLESS):
                yield Finding(bit, way, f"{problem.code}: {problem.cause}"[:300])
        except Exception as problem:  # noqa: BLE001 - whatever comes is the finding
            outcome = type(problem).__name__
            yield Finding(bit, way, repr(problem)[:300])
        finally:
            logging.getLogger().removeHandler(logged)
        for what in logged.seen:
            yield Finding(bit, way, what)
        self.outcomes[f"{way} {outcome}"] += 1


def misleading(data: bytes) -> Iterator[int]:
    """Yield the bits that make a page's child another of its children: that one then comes twice.

    Pages of type 5 are the inner ones of tables: SQLite's file format, "B-tree Pages".
    """
    for begin in range(SMALL_PAGE_BYTES, len(data), SMALL_PAGE_BYTES):  # the first: the schema's
        page = data[begin : begin + SMALL_PAGE_BYTES]
        if page[0] != INNER_TABLE:
            continue
        n_cells = int.from_bytes(page[3:5])
        cells = [int.from_bytes(page[at : at + 2]) for at in range(12, 12 + 2 * n_cells, 2)]
        places = [*cells, 8]  # the last child is in the header
        children = {place: int.from_bytes(page[place : place + 4]) for place in places}
        for place, child in children.items():
            for other in children.values():
                difference = child ^ other
                if difference.bit_count() == 1:
                    yield 8 * (begin + place + 3) + difference.bit_length() - 1


def undecodable(original: Path, scratch: Path, most: int) -> list[int]:
    """Return some bits that make SQLite complain in words that Python cannot decode."""
    data = original.read_bytes()
    schema = range(data.index(b"CREATE "), data.rindex(b"CREATE ") + 100)
    places = [place for place in schema if place < len(data)]
    random.Random(most).shuffle(places)  # noqa: S311 - repeatable on purpose
    bits: list[int] = []
    path = scratch / "undecodable.db"
    for place in places:
        if len(bits) == most:
            break
        damaged = bytearray(data)
        damaged[place] ^= 0x80
        path.write_bytes(damaged)
        with closing(sqlite3.connect(path)) as connection:
            try:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            except sqlite3.Error:
                continue
            except UnicodeDecodeError:
                bits.append(8 * place + 7)
    return bits
