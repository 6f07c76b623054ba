"""The journal itself: append, submit, number pilots, read back.

The daemon and the simulator write through ``Journal``; every call that changes
something is one transaction, on disk before it returns. Safe to call from threads.
What is only to be remembered may wait for a disk that is full: ``note``.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from sqlalchemy import Connection, delete, func, insert, select, update

from bftrainer.canonical import encode, text_of, to_plain
from bftrainer.journal import differences, mark, schema
from bftrainer.journal.backlog import PASSING, Backlog
from bftrainer.journal.database import Database, close_unchanged, open_database
from bftrainer.journal.errors import JournalError, damaged, fenced, translated
from bftrainer.journal.mark import Mark, MarkFile
from bftrainer.journal.projection import (
    CAUGHT_UP,
    OWN_KINDS,
    PILOT_ID,
    START,
    SUBMIT,
    Row,
    pilot_from,
    pilot_row,
    pilots_from,
    trainer_from,
    trainer_row,
    trainers_from,
)
from bftrainer.journal.records import (
    JournalEntry,
    PilotRecord,
    PilotState,
    pilot_ordinal,
    trainer_ordinal,
)
from bftrainer.journal.verify import entry_hash, verify
from bftrainer.trainer import TrainerRecord, TrainerSpec, TrainerState

LOG = logging.getLogger("bftrainer.journal")
_KIND = re.compile(r"[a-z][a-z0-9-]{0,63}\Z")
_BATCH_ROWS = 256


class _Meta(NamedTuple):
    incarnation: int
    last_pilot: int
    head_seq: int
    head_sha256: str


class Journal:
    """An append-only table of entries and the state tables that follow from it."""

    def __init__(
        self, database: Database, clock: Callable[[], float], marked: MarkFile | None = None
    ) -> None:
        """Use ``Journal.open``."""
        self._database: Database | None = database
        self._clock = clock
        self._lock = threading.RLock()
        self._marked = marked
        self._mark = self._next_mark = (marked.mark if marked else None) or Mark()
        self._accepted_loss: int | None = None  # to be written down with the incarnation
        self._backlog = Backlog()
        self._payloads = differences.Writer()
        self._reader = differences.Reader(self._payload_of)
        self.where = database.where
        with self._transaction(is_reading=True) as connection:
            self._incarnation = self._meta(connection).incarnation

    @classmethod
    def open(
        cls,
        url_or_path: str | Path,
        *,
        clock: Callable[[], float],
        is_verified: bool = True,
        mark_file: Path | None = None,
        accepted_loss: int | None = None,
    ) -> Journal:
        """Open or create a journal and prove that it is whole.

        Args:
            url_or_path: file of a SQLite database, or a database URL.
            clock: returns seconds since the epoch; stamps the entries.
            is_verified: read everything once and check it (under 1 s per 100 MB).
            mark_file: where it is kept how far the journal had come; for its one writer.
            accepted_loss: go on although the entries up to this one are not all there.

        Raises:
            BftError: BFT-2201 to 2214, each with the way out.
        """
        marked = MarkFile(mark_file) if mark_file is not None else None
        try:
            database = open_database(url_or_path)
            try:
                journal = cls(database, clock, marked)
                if is_verified:
                    journal.verify()
                journal._compare_with_mark(accepted_loss)
            except BaseException:
                close_unchanged(database)
                raise
        except BaseException:
            if marked is not None:
                marked.close()
            raise
        return journal

    @property
    def incarnation(self) -> int:
        """The incarnation in whose name this object writes."""
        return self._incarnation

    def begin_incarnation(self) -> int:
        """Take over: return a number greater than any daemon before had.

        Journals opened earlier on the same database can write no more (BFT-2209).
        """
        with self._transaction() as connection:
            found = max(self._meta(connection).incarnation, self._mark.incarnation) + 1
            self._set(connection, "incarnation", found)
            payload = {"incarnation": found, "accepted_loss": self._accepted_loss}
            self._write(connection, START, payload, incarnation=found)
        self._incarnation = found
        return found

    def append(
        self,
        kind: str,
        payload: object,
        *,
        trainers: Sequence[TrainerRecord] = (),
        pilots: Sequence[PilotRecord] = (),
    ) -> int:
        """Add one entry and bring its records into the state tables.

        Args:
            kind: a word such as "decision" or "launch".
            payload: a dataclass or mapping that has a canonical form.
            trainers: records as they are from now on.
            pilots: likewise.

        Returns:
            The number of the entry; it is on disk.

        Raises:
            BftError: BFT-2201 and others: nothing was written; BFT-2209: another
                daemon has taken over; BFT-2220: the payload has no canonical form.
        """
        if not _KIND.match(kind) or kind in OWN_KINDS:
            raise ValueError(f"{kind!r} cannot be the kind of an entry")
        with self._writing() as connection:
            return self._write(connection, kind, payload, trainers=trainers, pilots=pilots)

    def note(
        self,
        kind: str,
        payload: object,
        *,
        trainers: Sequence[TrainerRecord] = (),
        pilots: Sequence[PilotRecord] = (),
    ) -> int | None:
        """Write down what is so already, now or as soon as it is possible.

        While the store cannot be written, the latest record of each is kept in memory, and the
        payload if it is short: the next transaction that succeeds writes them first. What has
        to be on disk before something else is done is for ``append``.

        Returns:
            The number of the entry; None when it has to wait.

        Raises:
            BftError: as ``append``, but for what passes (``trouble``).
        """
        with self._lock:
            if self._backlog.trouble is None:
                try:
                    return self.append(kind, payload, trainers=trainers, pilots=pilots)
                except JournalError as problem:
                    if problem.code not in PASSING:
                        raise
            self._backlog.add(kind, payload, trainers, pilots)
            return None

    @property
    def trouble(self) -> JournalError | None:
        """Why nothing can be written at the moment."""
        return self._backlog.trouble

    def catch_up(self) -> None:
        """Try again to write, if there is trouble and its pause is over."""
        with self._lock:
            if self._backlog.is_due():
                try:
                    with self._writing():
                        pass
                except JournalError as problem:
                    if problem.code not in PASSING:
                        raise

    def submit(self, spec: TrainerSpec, at_s: float) -> TrainerRecord:
        """Number a new trainer and queue it; durable before this returns."""
        with self._writing() as connection:
            ordinal = max(self._greatest(connection, schema.trainers), self._mark.last_trainer) + 1
            record = TrainerRecord(
                trainer_id=f"t{ordinal}",
                spec=spec,
                state=TrainerState.QUEUED,
                submitted_s=at_s,
                reason="Waits for its first nodes.",
            )
            self._write(connection, SUBMIT, {"trainer_id": record.trainer_id}, trainers=[record])
        return record

    def next_pilot_id(self, above: int = 0) -> str:
        """Return an id that no pilot had before, not even one that was never started.

        ``above``: the greatest number of pilots that the journal may have forgotten.
        """
        with self._writing() as connection:
            given = max(self._meta(connection).last_pilot, self._mark.last_pilot, above)
            ordinal = max(given, self._greatest(connection, schema.pilots)) + 1
            pilot_id = f"p{ordinal:06d}"
            self._set(connection, "last_pilot", ordinal)
            self._write(connection, PILOT_ID, {"pilot_id": pilot_id})
        return pilot_id

    def trainers(self) -> tuple[TrainerRecord, ...]:
        """Return all trainers in order of submission."""
        table = schema.trainers
        with self._transaction(is_reading=True) as connection:
            query = select(table.c.record).order_by(table.c.ordinal)
            return tuple(trainer_from(text) for text in connection.execute(query).scalars())

    def pilots(self, *, active_only: bool = False) -> tuple[PilotRecord, ...]:
        """Return all pilots, or those that may still have a job, oldest first."""
        table = schema.pilots
        query = select(table.c.record).order_by(table.c.ordinal)
        if active_only:
            active = [str(state) for state in PilotState if state.is_active]
            query = query.where(table.c.state.in_(active))
        with self._transaction(is_reading=True) as connection:
            return tuple(pilot_from(text) for text in connection.execute(query).scalars())

    def entries(
        self, kind: str | None = None, after_seq: int = 0, limit: int | None = None
    ) -> Iterator[JournalEntry]:
        """Yield entries in order; a few hundred at a time are in memory."""
        table = schema.entries
        left = limit
        while left is None or left > 0:
            size = _BATCH_ROWS if left is None else min(_BATCH_ROWS, left)
            query = select(table).where(table.c.seq > after_seq).order_by(table.c.seq).limit(size)
            if kind is not None:
                query = query.where(table.c.kind == kind)
            with self._transaction(is_reading=True) as connection:
                rows = [dict(row) for row in connection.execute(query).mappings()]
            for row in rows:
                yield self._entry(row)
            if len(rows) < size:
                return
            after_seq = rows[-1]["seq"]
            left = None if left is None else left - len(rows)

    def latest(self, kind: str) -> JournalEntry | None:
        """Return the last entry of a kind."""
        table = schema.entries
        query = select(table).where(table.c.kind == kind).order_by(table.c.seq.desc()).limit(1)
        with self._transaction(is_reading=True) as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else self._entry(dict(row))

    def verify(self) -> int:
        """Check pages, hash chain and state tables; return the number of entries.

        Raises:
            BftError: BFT-2202 or BFT-2205, saying what does not fit.
        """
        with self._transaction(is_reading=True) as connection:
            return verify(connection, self.where)

    def close(self) -> None:
        """Close the database; it is one file then. Safe to call twice."""
        with self._lock:
            if self._database is not None:
                with translated(self.where):
                    self._database.engine.dispose()
                self._database = None
            if self._marked is not None:
                self._marked.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- inside a transaction ------------------------------------------------------

    @contextmanager
    def _transaction(self, *, is_reading: bool = False) -> Iterator[Connection]:
        with self._lock:
            if self._database is None:
                raise RuntimeError("the journal is closed")
            engine = self._database.engine.execution_options(is_reading=is_reading)
            self._next_mark = self._mark
            self._payloads.begin()
            with translated(self.where), engine.begin() as connection:
                yield connection
            self._payloads.keep()
            if self._next_mark is not self._mark:
                self._mark = self._next_mark
                if self._marked is not None:
                    self._marked.write(self._mark)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that begins with what had to wait."""
        with self._lock:
            try:
                with self._transaction() as connection:
                    if self._backlog.is_waiting:
                        self._write(
                            connection,
                            CAUGHT_UP,
                            self._backlog.payload(),
                            trainers=tuple(self._backlog.trainers.values()),
                            pilots=tuple(self._backlog.pilots.values()),
                        )
                        for kind, payload in self._backlog.kept:
                            self._write(connection, kind, payload)
                    yield connection
            except JournalError as problem:
                self._backlog.failed(problem)
                raise
            self._backlog.written()

    def _compare_with_mark(self, accepted_loss: int | None) -> None:
        known = self._mark
        if known.seq == 0:
            return
        with self._transaction(is_reading=True) as connection:
            meta = self._meta(connection)
            at_mark = select(schema.entries.c.sha256).where(schema.entries.c.seq == known.seq)
            sha256 = connection.execute(at_mark).scalar()
            found = Mark().followed_by(
                meta.head_seq,
                meta.head_sha256,
                incarnation=meta.incarnation,
                last_pilot=max(meta.last_pilot, self._greatest(connection, schema.pilots)),
                last_trainer=self._greatest(connection, schema.trainers),
            )
        if sha256 == known.sha256:
            return
        problem = mark.lost(self.where, known, found, is_other=sha256 is not None)
        if accepted_loss != known.seq:
            raise problem
        self._accepted_loss = accepted_loss
        LOG.warning("accepted by the administrator: %s", problem.cause)

    def _write(
        self,
        connection: Connection,
        kind: str,
        payload: object,
        *,
        trainers: Sequence[TrainerRecord] = (),
        pilots: Sequence[PilotRecord] = (),
        incarnation: int | None = None,
    ) -> int:
        meta = self._meta(connection)
        own = self._incarnation if incarnation is None else incarnation
        if meta.incarnation != own:
            raise fenced(self.where, own, meta.incarnation)
        seq, plain = meta.head_seq + 1, to_plain(payload)
        row: Row = {
            "seq": seq,
            "at_s": float(self._clock()),
            "incarnation": own,
            "kind": kind,
            "payload": self._payloads.shortened(kind, seq, text_of(plain), plain),
            "trainers": encode(tuple(trainers)).decode(),
            "pilots": encode(tuple(pilots)).decode(),
        }
        row["sha256"] = entry_hash(meta.head_sha256, row)
        connection.execute(insert(schema.entries), row)
        self._set(connection, "head_seq", seq)
        self._set(connection, "head_sha256", row["sha256"])
        _replace(connection, schema.trainers, "trainer_id", [trainer_row(t, seq) for t in trainers])
        _replace(connection, schema.pilots, "pilot_id", [pilot_row(p, seq) for p in pilots])
        self._next_mark = self._next_mark.followed_by(
            seq,
            row["sha256"],
            incarnation=own,
            last_pilot=max([meta.last_pilot, *(pilot_ordinal(p.pilot_id) for p in pilots)]),
            last_trainer=max([0, *(trainer_ordinal(t.trainer_id) for t in trainers)]),
        )
        return seq

    def _meta(self, connection: Connection) -> _Meta:
        # The lock makes writers on a server queue here, as BEGIN IMMEDIATE does in a file.
        rows = connection.execute(select(schema.meta).with_for_update())
        meta = {row.key: row.value for row in rows}
        try:
            return _Meta(
                incarnation=int(meta["incarnation"]),
                last_pilot=int(meta["last_pilot"]),
                head_seq=int(meta["head_seq"]),
                head_sha256=str(meta["head_sha256"]),
            )
        except (KeyError, ValueError, TypeError) as problem:
            raise damaged(self.where, "its own counters are missing or unreadable") from problem

    def _set(self, connection: Connection, key: str, value: object) -> None:
        table = schema.meta
        connection.execute(update(table).where(table.c.key == key).values(value=str(value)))

    def _payload_of(self, seq: int) -> str | None:
        query = select(schema.entries.c.payload).where(schema.entries.c.seq == seq)
        with self._transaction(is_reading=True) as connection:
            return connection.execute(query).scalar()

    def _entry(self, row: Row) -> JournalEntry:
        with self._lock:
            payload = self._reader.whole(row["seq"], row["payload"])
        return JournalEntry(
            seq=row["seq"],
            at_s=row["at_s"],
            incarnation=row["incarnation"],
            kind=row["kind"],
            payload=payload,
            trainers=trainers_from(row["trainers"]),
            pilots=pilots_from(row["pilots"]),
            sha256=row["sha256"],
        )

    def _greatest(self, connection: Connection, table: Any) -> int:
        return int(connection.execute(select(func.max(table.c.ordinal))).scalar() or 0)


def _replace(connection: Connection, table: Any, key: str, rows: list[Row]) -> None:
    if rows:
        last = {row[key]: row for row in rows}  # of two states in one entry, the later
        connection.execute(delete(table).where(table.c[key].in_(list(last))))
        connection.execute(insert(table), list(last.values()))
