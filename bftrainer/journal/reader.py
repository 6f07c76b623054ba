"""Read access to a journal: trainers, pilots, entries. Base class of ``Journal``."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager

from sqlalchemy import Connection, select

from bftrainer.journal import differences, projection
from bftrainer.journal.projection import (
    JournalEntry,
    PilotRecord,
    PilotState,
    Row,
    pilot_from,
    pilots_from,
    trainer_from,
    trainers_from,
)
from bftrainer.journal.verify import first_to_follow
from bftrainer.model.trainer import TrainerRecord

_BATCH_ROWS = 256


class JournalReader(ABC):
    """The read methods of a journal."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._reader = differences.Reader(self._payload_of)

    @abstractmethod
    def _transaction(self, *, is_reading: bool = False) -> AbstractContextManager[Connection]:
        """Return a transaction; under ``_lock``."""

    def trainers(self) -> tuple[TrainerRecord, ...]:
        """Return all trainers in order of submission."""
        table = projection.trainers
        with self._transaction(is_reading=True) as connection:
            query = select(table.c.record).order_by(table.c.ordinal)
            return tuple(trainer_from(text) for text in connection.execute(query).scalars())

    def pilots(self, *, active_only: bool = False) -> tuple[PilotRecord, ...]:
        """Return all pilots, or those that may still have a job, oldest first."""
        table = projection.pilots
        query = select(table.c.record).order_by(table.c.ordinal)
        if active_only:
            active = [str(state) for state in PilotState if state.is_active]
            query = query.where(table.c.state.in_(active))
        with self._transaction(is_reading=True) as connection:
            return tuple(pilot_from(text) for text in connection.execute(query).scalars())

    def ended_pilots(self, most: int) -> tuple[PilotRecord, ...]:
        """Return the newest that have ended since the last checkpoint, oldest first."""
        table = projection.pilots
        query = select(table.c.record).where(table.c.state == str(PilotState.ENDED))
        query = query.order_by(table.c.ordinal.desc()).limit(most)
        with self._transaction(is_reading=True) as connection:
            return tuple(pilot_from(text) for text in connection.execute(query).scalars())[::-1]

    def entries(
        self, kind: str | None = None, after_seq: int = 0, limit: int | None = None
    ) -> Iterator[JournalEntry]:
        """Yield entries in order, loading a few hundred at a time."""
        table = projection.entries
        left = limit
        with self._transaction(is_reading=True) as connection:
            after_seq = max(after_seq, first_to_follow(connection) - 1)
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

    def newest(self, kind: str, count: int) -> list[JournalEntry]:
        """Return the last entries of a kind, oldest first."""
        table = projection.entries
        query = select(table).where(table.c.kind == kind).order_by(table.c.seq.desc()).limit(count)
        with self._transaction(is_reading=True) as connection:
            rows = [dict(row) for row in connection.execute(query).mappings()]
        return [self._entry(row) for row in reversed(rows)]

    def latest(self, kind: str) -> JournalEntry | None:
        """Return the last entry of a kind."""
        return next(iter(self.newest(kind, 1)), None)

    def _payload_of(self, seq: int) -> str | None:
        query = select(projection.entries.c.payload).where(projection.entries.c.seq == seq)
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
