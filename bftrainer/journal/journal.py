"""The journal: append, submit, number pilots, read back.

The daemon and the simulator write through ``Journal``; every call that changes something is one
transaction, on disk when it returns. Thread-safe. Entries that only record the past may wait for
the disk: ``note``.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Select, select

from bftrainer.journal import differences, mark, projection, tables
from bftrainer.journal.backlog import PASSING, Backlog, Beside, EntryDraft, Large
from bftrainer.journal.database import Database, close_unchanged, open_database
from bftrainer.journal.errors import JournalError, translated
from bftrainer.journal.mark import Mark, MarkFile
from bftrainer.journal.projection import (
    OWN_KINDS,
    START,
    SUBMIT,
    JournalEntry,
    PilotRecord,
    PilotState,
    Row,
    pilot_of,
    trainer_of,
)
from bftrainer.journal.texts import whole
from bftrainer.model.canonical import CanonicalError, parse
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState

T = TypeVar("T")
LOG = logging.getLogger("bftrainer.journal")
ASKED_EVERY_S = 5.0  # by a daemon with nothing to write: is the server there, are we in charge?
SWEPT_EVERY_S = 3600.0  # texts to which no trainer refers
_BATCH_ROWS = 256
_TEXTS = 64  # kept in memory while trainers are read
_KIND = re.compile(r"[a-z][a-z0-9-]{0,63}\Z")


class Journal:
    """An append-only table of entries and the state tables that follow from it."""

    def __init__(
        self, database: Database, clock: Callable[[], float], marked: MarkFile | None = None
    ) -> None:
        """Use ``Journal.open``."""
        self._lock = threading.RLock()
        self._reader = differences.Reader(self._payload_of)
        self._database: Database | None = database
        self._clock = clock
        self._marked = marked
        self._mark = self._next_mark = (marked.mark if marked else None) or Mark()
        self.acknowledged: Mark | None = None  # what must be there, as far as anything tells
        self._accepted_loss: int | None = None  # recorded with the incarnation
        self._backlog = Backlog()
        self._noting = threading.Lock()  # notes are encoded before ``_lock`` is taken
        self._shorten = differences.DifferenceWriter()
        self._beside: Beside | None = None
        self._seqs: dict[str, int] = {}  # by kind of note
        self._numbering = threading.Lock()
        self._keep_s, self._checkpointed, self._cut = math.inf, 0, 0  # see ``write_beside``
        # Of the last checkpoint, and of the entries since.
        self._checkpoint_chars = self._chars_since = 0
        self._asked_s, self._swept_s = -math.inf, time.monotonic()
        self.where = database.where
        with self._transaction(is_reading=True) as connection:
            meta = tables.meta_of(connection, self.where)
            self._incarnation = meta.incarnation
            # Greatest number used; ``_mark`` has those that this object has written.
            self._last_pilot = max(meta.last_pilot, tables.greatest(connection, projection.pilots))

    @classmethod
    def open(
        cls,
        url_or_path: str | Path,
        *,
        clock: Callable[[], float],
        is_verified: bool = True,
        mark_file: Path | None = None,
        accepted_loss: int | None = None,
        acknowledged: Mark | None = None,
    ) -> Journal:
        """Open or create a journal and verify it.

        Args:
            url_or_path: file of a SQLite database, or a database URL.
            clock: returns seconds since the epoch; stamps the entries.
            is_verified: check the entries from the last checkpoint on (under 1 s per 100 MB);
                ``verify`` checks all.
            mark_file: file that records the last acknowledged entry; for the one writer.
            accepted_loss: continue although entries up to this number are missing.
            acknowledged: refuse a journal that lacks this entry; None: that of ``mark_file``, or
                of the mark beside a SQLite database.

        Raises:
            BftError: BFT-2201 to 2214.
        """
        marked = None
        if mark_file is not None:
            marked = MarkFile(mark_file)
        try:
            database = open_database(url_or_path)
            try:
                if marked is not None:
                    acknowledged = marked.mark
                elif acknowledged is None:  # read first: a daemon may write meanwhile
                    acknowledged = mark.beside(Path(database.where))
                journal = cls(database, clock, marked)
                if is_verified:
                    journal._verify_tail()
                journal.acknowledged = acknowledged
                journal._compare_with(acknowledged or Mark(), accepted_loss)
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
        """The incarnation with which this object writes."""
        return self._incarnation

    def begin_incarnation(self) -> int:
        """Take over: return a number greater than that of any earlier daemon.

        Journals opened earlier on the same database can no longer write (BFT-2209).
        """
        with self._transaction() as connection:
            last = tables.meta_of(connection, self.where).incarnation
            number = max(last, self._mark.incarnation) + 1
            tables.set_meta(connection, "incarnation", number)
            payload = {"incarnation": number, "accepted_loss": self._accepted_loss}
            self._write(connection, EntryDraft.of(START, payload), incarnation=number)
        self._incarnation = number
        return number

    def append(
        self,
        kind: str,
        payload: object,
        *,
        trainers: Sequence[TrainerRecord] = (),
        pilots: Sequence[PilotRecord] = (),
    ) -> int:
        """Add one entry and update the state tables with its records.

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
        draft = _draft(kind, payload, trainers, pilots)
        with self._writing() as connection:
            return self._write(connection, draft)

    def note(
        self,
        kind: str,
        payload: object,
        *,
        trainers: Sequence[TrainerRecord] = (),
        pilots: Sequence[PilotRecord] = (),
    ) -> None:
        """Record something that has already happened, in order, as soon as possible.

        While the store cannot be written, the latest record of each trainer and pilot and
        short payloads are kept in memory; the next successful transaction writes them first.
        What must be on disk before something else is done needs ``append``, which does not
        wait for notes, so its records must be new ones.

        Raises:
            BftError: as ``append``, except passing troubles (``trouble``); after
                ``write_beside`` possibly at a later call.
        """
        self._note(_draft(kind, payload, trainers, pilots))

    def note_large(self, kind: str, value: object) -> None:
        """Record a large value as a difference from the last one; encoded when written.

        ``value``: a frozen dataclass that will not change. If it has no canonical form, it is
        skipped and logged.
        """
        self._note(Large(kind=kind, value=value))

    def _note(self, item: EntryDraft | Large) -> None:
        if self._beside is not None:
            self._beside.put(item)
        else:
            self._write_notes([item])

    def write_beside(self, keep_s: float = math.inf) -> None:
        """Write notes in a background thread from now on; ``close`` ends it.

        The thread also writes checkpoints and removes the entries before the last one that is
        older than ``keep_s``.
        """
        self._keep_s = keep_s
        with self._transaction(is_reading=True) as connection:
            self._checkpointed = tables.last_checkpoint(connection)
        self._cut = self._find_cut(keep_s)
        self._beside = Beside(self._write_notes)

    def keep(self, keep_s: float) -> None:
        """Keep entries for so long from now on (``write_beside``)."""
        self._keep_s = keep_s

    def compact(self, keep_s: float) -> int:
        """Remove entries older than ``keep_s`` and free their space; return how many.

        It may take minutes and temporarily needs as much space as the file. Not to be combined
        with ``write_beside``.
        """
        self.checkpoint(self._clock() - keep_s)
        cut, n_removed = self._find_cut(keep_s), 0
        while count := self._remove_some(cut):
            n_removed += count
        if self._database is not None and not self._is_elsewhere:
            with (
                self._lock,
                translated(self.where),
                closing(self._database.engine.raw_connection()) as connection,
            ):
                connection.cursor().execute("VACUUM")
        return n_removed

    def flush(self) -> None:
        """Wait until all notes are on disk, or in the backlog (``trouble``)."""
        if self._beside is not None:
            self._beside.flush()

    def last_seq(self, kind: str) -> int | None:
        """Return the number of the last note of a kind that this object has written."""
        return self._seqs.get(kind)

    @property
    def trouble(self) -> JournalError | None:
        """The error that keeps the journal from being written at present."""
        return self._backlog.trouble

    def catch_up(self) -> None:
        """Retry a failed write if its pause is over.

        Raises:
            BftError: an error that does not pass, such as BFT-2209.
        """
        if self._beside is not None:
            self._beside.check()  # the thread retries by itself
        else:
            self._write_notes([])

    def submit(
        self, spec: TrainerSpec, at_s: float, waits_for: tuple[str, ...] = ()
    ) -> TrainerRecord:
        """Number a new trainer and queue it; durable before this returns."""
        [record] = self.submit_all([(spec, waits_for)], at_s)
        return record

    def submit_all(
        self, asked: Sequence[tuple[TrainerSpec, tuple[str, ...]]], at_s: float
    ) -> tuple[TrainerRecord, ...]:
        """Do so with several, all or none; each with the trainers that it waits for."""
        with self._writing() as connection:
            last = max(tables.greatest(connection, projection.trainers), self._mark.last_trainer)
            records = tuple(
                TrainerRecord(
                    trainer_id=f"t{ordinal}",
                    spec=spec,
                    state=TrainerState.QUEUED,
                    submitted_s=at_s,
                    reason="Waits for its first nodes.",
                    held_s=at_s if spec.hold else None,
                    waits_for=waits_for,
                )
                for ordinal, (spec, waits_for) in enumerate(asked, start=last + 1)
            )
            payload = {"trainer_id": records[0].trainer_id}
            self._write(connection, EntryDraft.of(SUBMIT, payload, records))
        return records

    def checkpoint(self, ended_before_s: float) -> int:
        """Write a checkpoint; return its number.

        Ended pilots, and trainers that ended before a time, are forgotten.
        """
        with self._noting:
            return self._checkpoint(ended_before_s)

    def _checkpoint(self, ended_before_s: float) -> int:
        with self._writing() as connection:
            draft = tables.begin_checkpoint(connection, self.where, ended_before_s)
            seq = self._write(connection, draft)
            tables.remove_texts(connection)
        self._checkpoint_chars, self._chars_since = draft.n_chars, 0
        self._shorten.forget()  # later entries must not refer to earlier ones
        return seq

    def next_pilot_ids(self, count: int, above: int = 0) -> list[str]:
        """Return unused pilot ids.

        They are known only in memory until their pilots are written.

        Args:
            count: how many.
            above: the greatest number of a pilot that the journal may have lost.
        """
        with self._numbering:
            first = max(self._mark.last_pilot, self._last_pilot, above) + 1
            self._last_pilot = first + count - 1
        return [f"p{ordinal:06d}" for ordinal in range(first, first + count)]

    def _verify_tail(self) -> None:
        with self._transaction(is_reading=True) as connection:
            begin = tables.last_checkpoint(connection)
            tables.verify(connection, self.where, begin=begin)

    def verify(self) -> int:
        """Check pages, the whole hash chain and the state tables; return the number of entries.

        Raises:
            BftError: BFT-2202 or BFT-2205, with the first mismatch.
        """
        with self._transaction(is_reading=True) as connection:
            return tables.verify(connection, self.where)

    def close(self) -> None:
        """Write all notes and close the database, which then is one file. Safe to call twice."""
        if self._beside is not None:
            self._beside.stop()
        with self._lock:
            if self._database is not None:
                if self._backlog.is_waiting:  # the disk may have space again
                    with suppress(JournalError), self._writing():
                        pass
                with translated(self.where):
                    self._database.engine.dispose()
                self._database = None
            if self._marked is not None:
                self._marked.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- reading --------------------------------------------------------------------

    def trainers(self) -> tuple[TrainerRecord, ...]:
        """Return all trainers in order of submission."""
        table = projection.trainers
        text_of_digest = lru_cache(_TEXTS)(self._text)

        def with_texts(plain: Any) -> TrainerRecord:
            return trainer_of(whole(plain, text_of_digest))

        return self._records(select(table.c.record).order_by(table.c.ordinal), with_texts)

    def pilots(self, *, active_only: bool = False) -> tuple[PilotRecord, ...]:
        """Return all pilots, or those that may still have a job, oldest first."""
        table = projection.pilots
        query = select(table.c.record).order_by(table.c.ordinal)
        if active_only:
            active = [str(state) for state in PilotState if state.is_active]
            query = query.where(table.c.state.in_(active))
        return self._records(query, pilot_of)

    def ended_pilots(self, most: int) -> tuple[PilotRecord, ...]:
        """Return the newest that have ended since the last checkpoint, oldest first."""
        table = projection.pilots
        query = select(table.c.record).where(table.c.state == str(PilotState.ENDED))
        query = query.order_by(table.c.ordinal.desc()).limit(most)
        return self._records(query, pilot_of)[::-1]

    def _records(self, query: Select[Any], record_of: Callable[[Any], T]) -> tuple[T, ...]:
        """Return the records of a query for their texts.

        Raises:
            BftError: BFT-2205, one is no record.
        """
        with self._transaction(is_reading=True) as connection:
            texts = connection.execute(query).scalars().all()
        try:
            return tuple([record_of(parse(text)) for text in texts])
        except tables.UNREADABLE as problem:
            why = f"unreadable content ({type(problem).__name__})"
            raise JournalError.of("BFT-2205", self.where, why) from problem

    def entries(
        self, kind: str | None = None, after_seq: int = 0, limit: int | None = None
    ) -> Iterator[JournalEntry]:
        """Yield entries in order, loading a few hundred at a time; each is as it was written.

        Raises:
            BftError: BFT-2202 or BFT-2205, one was damaged.
        """
        table = projection.entries
        remaining = math.inf
        if limit is not None:
            remaining = limit
        with self._transaction(is_reading=True) as connection:
            first = tables.first_to_follow(connection)
            if after_seq < max(first, 1):
                tables.check_front(connection, self.where, first)
            after_seq = max(after_seq, first - 1)
        while remaining > 0:
            size = int(min(_BATCH_ROWS, remaining))
            query = tables.select_entries().where(table.c.seq > after_seq)
            if kind is not None:
                query = query.where(table.c.kind == kind)
            rows = self._rows(query.order_by(table.c.seq).limit(size))
            for place, row in enumerate(rows):
                # Entries are removed from the front alone, between two batches.
                if kind is None and place and row["seq"] != after_seq + 1:
                    why = f"entry {after_seq + 1} is missing"
                    raise JournalError.of("BFT-2205", self.where, why)
                after_seq = row["seq"]
                yield self._entry(row)
            if len(rows) < size:
                return
            remaining -= len(rows)

    def newest(self, kind: str, count: int) -> list[JournalEntry]:
        """Return the last entries of a kind, oldest first."""
        table = projection.entries
        query = tables.select_entries().where(table.c.kind == kind)
        rows = self._rows(query.order_by(table.c.seq.desc()).limit(count))
        return list(map(self._entry, reversed(rows)))

    def latest(self, kind: str) -> JournalEntry | None:
        """Return the last entry of a kind."""
        return next(iter(self.newest(kind, 1)), None)

    def _rows(self, query: Select[Any]) -> list[Row]:
        with self._transaction(is_reading=True) as connection:
            return tables.read_entries(connection, self.where, query)

    def _payload_of(self, seq: int) -> str | None:
        rows = self._rows(tables.select_entries().where(projection.entries.c.seq == seq))
        if not rows:
            return None
        return str(rows[0]["payload"])

    def _text(self, digest: str) -> str | None:
        """Return a long part of trainers' specs; None: it was removed."""
        with self._transaction(is_reading=True) as connection:
            return tables.text_of_digest(connection, digest)

    def _entry(self, row: Row) -> JournalEntry:
        with self._lock:
            payload = self._reader.whole(row["seq"], row["payload"])
        try:
            trainers = [whole(plain, self._text, is_past=True) for plain in parse(row["trainers"])]
            records = {
                "trainers": tuple(map(trainer_of, trainers)),
                "pilots": tuple(map(pilot_of, parse(row["pilots"]))),
            }
        except tables.UNREADABLE as problem:
            why = f"entry {row['seq']} is unreadable ({type(problem).__name__})"
            raise JournalError.of("BFT-2205", self.where, why) from problem
        return JournalEntry(**{**row, **records, "payload": payload})

    # ---- inside a transaction ------------------------------------------------------

    @contextmanager
    def _transaction(self, *, is_reading: bool = False) -> Iterator[Connection]:
        with self._lock:
            if self._database is None:
                raise RuntimeError("the journal is closed")
            engine = self._database.engine.execution_options(is_reading=is_reading)
            self._next_mark = self._mark
            with translated(self.where), engine.begin() as connection:
                yield connection
            if self._next_mark is not self._mark:
                self._mark = self._next_mark
                if self._marked is not None:
                    self._marked.write(self._mark)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that first writes the backlog."""
        with self._lock:
            try:
                with self._transaction() as connection:
                    if self._backlog.is_waiting:
                        self._write(connection, self._backlog.draft())
                        for draft in self._backlog.kept:
                            self._write(connection, draft)
                    yield connection
            except JournalError as problem:
                self._backlog.failed(problem)
                raise
            self._backlog.written()

    def _write_notes(self, items: list[EntryDraft | Large], late: Backlog | None = None) -> None:
        """Write notes in one transaction, or add them to the backlog."""
        with self._noting:
            seqs: dict[str, int] = {}
            if items and self._backlog.trouble is None:
                try:
                    drafts = self._drafts(items)  # before the lock is taken
                    with self._writing() as connection:
                        for draft in drafts:
                            seqs[draft.kind] = self._write(connection, draft)
                except JournalError as problem:
                    self._shorten.forget()
                    if problem.code not in PASSING:
                        raise
                else:
                    self._seqs |= seqs
                    items = []
            with self._lock:
                for item in items:
                    self._backlog.add(item)
                if late is not None:
                    self._backlog.follow(late)
            try:
                if self._backlog.is_due():
                    with self._writing():
                        pass
                if self._beside is not None and self._backlog.trouble is None:
                    self._keep_house()
            except JournalError as problem:
                if problem.code not in PASSING:
                    raise

    def _keep_house(self) -> None:
        """Write a checkpoint, or remove some expired entries."""
        if self._needs_checkpoint():
            self._checkpointed = self._checkpoint(self._clock() - self._keep_s)
            self._cut = self._find_cut(self._keep_s)
        elif self._cut and not self._remove_some(self._cut):
            self._cut = 0
        elif time.monotonic() >= self._swept_s + SWEPT_EVERY_S:
            self._swept_s = time.monotonic()
            with self._transaction() as connection:
                self._meta(connection)
                tables.remove_texts(connection)
        elif self._is_elsewhere and time.monotonic() >= self._asked_s + ASKED_EVERY_S:
            self._asked_s = time.monotonic()
            with self._writing() as connection:
                self._meta(connection)

    def _needs_checkpoint(self) -> bool:
        if self._mark.seq - self._checkpointed < tables.ENTRIES_BETWEEN:
            return False
        if self._checkpoint_chars < tables.LONG_CHECKPOINT_CHARS:
            return True
        return self._chars_since >= tables.TIMES_CHECKPOINT * self._checkpoint_chars

    @property
    def _is_elsewhere(self) -> bool:
        """True if a daemon of another host may write, too; a file has the lock beside it."""
        return self._database is not None and self._database.engine.dialect.name != "sqlite"

    def _meta(self, connection: Connection, own: int | None = None) -> tables.Meta:
        """Return the counters; BFT-2209 if another daemon has taken over from ``own``."""
        meta = tables.meta_of(connection, self.where)
        expected = self._incarnation if own is None else own
        if meta.incarnation != expected:
            raise JournalError.of("BFT-2209", self.where, own=expected, found=meta.incarnation)
        return meta

    def _find_cut(self, keep_s: float) -> int:
        with self._transaction(is_reading=True) as connection:
            return tables.last_checkpoint(connection, until_s=self._clock() - keep_s)

    def _remove_some(self, cut: int) -> int:
        with self._transaction() as connection:
            self._meta(connection)
            return tables.remove_before(connection, cut)

    def _drafts(self, items: Sequence[EntryDraft | Large]) -> list[EntryDraft]:
        drafts = []
        for item in items:
            if isinstance(item, EntryDraft):
                drafts.append(item)
                continue
            try:
                shortened = self._shorten.shortened(item.kind, item.value)
            except CanonicalError:  # a missing record must not stop the daemon
                LOG.exception("an entry %s cannot be written", item.kind)
            else:
                drafts.append(EntryDraft(item.kind, shortened))
        return drafts

    def head(self) -> Mark:
        """Return the mark of the last entry, as found."""
        with self._transaction(is_reading=True) as connection:
            return tables.head_of(connection, self.where)

    def _compare_with(self, known: Mark, accepted_loss: int | None) -> None:
        if known.seq == 0:
            return
        with self._transaction(is_reading=True) as connection:
            at_mark = select(projection.entries.c.sha256).where(
                projection.entries.c.seq == known.seq
            )
            sha256 = connection.execute(at_mark).scalar()
            head = tables.head_of(connection, self.where)
            first = tables.first_entry(connection)
        if sha256 == known.sha256 or (sha256 is None and known.seq < first):
            return  # second case: the marked entry was removed after a checkpoint
        problem = mark.lost(self.where, known, head, is_other=sha256 is not None)
        if accepted_loss != known.seq:
            raise problem
        self._accepted_loss = accepted_loss
        LOG.warning("accepted by the administrator: %s", problem.cause)

    def _write(
        self, connection: Connection, draft: EntryDraft, *, incarnation: int | None = None
    ) -> int:
        meta, at_s = self._meta(connection, incarnation), float(self._clock())
        self._next_mark = tables.write(connection, draft, meta, self._next_mark, at_s)
        self._chars_since += draft.n_chars
        return self._next_mark.seq


def _draft(
    kind: str,
    payload: object,
    trainers: Sequence[TrainerRecord],
    pilots: Sequence[PilotRecord],
) -> EntryDraft:
    if not _KIND.match(kind) or kind in OWN_KINDS:
        raise ValueError(f"{kind!r} cannot be the kind of an entry")
    return EntryDraft.of(kind, payload, trainers, pilots)
