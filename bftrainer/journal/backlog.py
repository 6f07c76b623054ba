"""Entries that are not written yet: they wait for the writer's thread, or for the disk.

``Journal.note`` adds entries; the next successful transaction writes them. Entries beyond the
queue's limits go into a backlog, and in an outage all do. It keeps only the latest record of each
trainer and pilot, and a limited number of short payloads, so an outage of any length needs little
memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from bftrainer.journal.differences import Shortened
from bftrainer.journal.errors import JournalError
from bftrainer.journal.projection import CAUGHT_UP, PilotRecord
from bftrainer.journal.texts import apart
from bftrainer.model.canonical import parse, text_of, to_plain
from bftrainer.model.trainer import TrainerRecord

LOG = logging.getLogger("bftrainer.journal")
# Disk full, not writable, failing, locked; server away. Other errors do not pass by waiting.
PASSING: Final = frozenset({"BFT-2201", "BFT-2206", "BFT-2207", "BFT-2208", "BFT-2211"})
LONGEST_PAUSE_S: Final = 30.0
KEPT_BYTES: Final = 4096  # of a payload; decisions are longer
KEPT_ENTRIES: Final = 1000
QUEUED: Final = 1000  # entries that wait for the disk
LARGE_QUEUED: Final = 8  # large ones among them: each holds a whole snapshot
BATCH: Final = 64  # entries in one transaction
LONGEST_FLUSH_S: Final = 10.0
PERIOD_S: Final = 1.0  # between two calls without entries


@dataclass(frozen=True, slots=True)
class EntryDraft:
    """An entry without its number; payload and each record as canonical JSON."""

    kind: str
    payload: str | Shortened
    trainers: tuple[str, ...] = ()
    pilots: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)  # to which the trainers refer

    @property
    def n_chars(self) -> int:
        """Return the length of the entry, without texts."""
        payload = self.payload if isinstance(self.payload, str) else self.payload.text
        return len(payload) + sum(map(len, self.trainers)) + sum(map(len, self.pilots))

    @classmethod
    def of(
        cls,
        kind: str,
        payload: object,
        trainers: Sequence[TrainerRecord] = (),
        pilots: Sequence[PilotRecord] = (),
    ) -> Self:
        """Encode the parts of an entry.

        Raises:
            CanonicalError: BFT-2220, a part has no canonical form.
        """
        texts: dict[str, str] = {}
        return cls(
            kind,
            text_of(to_plain(payload)),
            tuple([text_of(apart(to_plain(record), texts)) for record in trainers]),
            tuple([text_of(to_plain(pilot)) for pilot in pilots]),
            texts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """A draft whose payload is encoded only when it is written."""

    kind: str
    value: object  # must not change any more


@dataclass(slots=True, kw_only=True)
class Backlog:
    """Waiting entries, and the error that keeps them from being written."""

    trouble: JournalError | None = None
    trainers: dict[str, str] = field(default_factory=dict)  # the latest record by id
    pilots: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # to which those trainers refer
    kept: deque[EntryDraft] = field(default_factory=lambda: deque(maxlen=KEPT_ENTRIES))
    _kinds: Counter[str] = field(default_factory=Counter)  # of all that could not be written
    _tries: int = 0
    _next_try_s: float = 0.0

    def add(self, item: EntryDraft | Large) -> None:
        """Keep the records of an entry, and its payload if that is short."""
        self._kinds[item.kind] += 1
        if isinstance(item, EntryDraft):
            if isinstance(item.payload, str) and len(item.payload) <= KEPT_BYTES:
                self.kept.append(EntryDraft(item.kind, item.payload))
            for record in item.trainers:
                self.trainers[parse(record)["trainer_id"]] = record
            for record in item.pilots:
                self.pilots[parse(record)["pilot_id"]] = record
            self.texts |= item.texts

    def follow(self, later: Backlog) -> None:
        """Append a later backlog."""
        self._kinds += later._kinds
        self.kept += later.kept
        self.trainers |= later.trainers
        self.pilots |= later.pilots
        self.texts |= later.texts

    @property
    def is_waiting(self) -> bool:
        """Return whether entries wait."""
        return bool(self._kinds)

    def draft(self) -> EntryDraft:
        """Return the entry that counts late and dropped entries and holds the records."""
        payload = {
            "late": dict(self._kinds),
            "kept": len(self.kept),
            "why": self.trouble.code if self.trouble else "slow disk",
        }
        return EntryDraft(
            CAUGHT_UP,
            text_of(payload),
            tuple(self.trainers.values()),
            tuple(self.pilots.values()),
            self.texts,
        )

    def failed(self, problem: JournalError) -> None:
        """Record a failed write; logged once, retried after a pause."""
        if problem.code not in PASSING:
            return
        if self.trouble is None:
            LOG.error("%s", problem)
        self.trouble = problem
        self._next_try_s = time.monotonic() + min(LONGEST_PAUSE_S, 2.0**self._tries)
        self._tries = min(self._tries + 1, 16)

    def is_due(self) -> bool:
        """Return whether to try again now."""
        has_to = self.is_waiting or self.trouble is not None
        return has_to and time.monotonic() >= self._next_try_s

    def written(self) -> None:
        """Clear the backlog after it was written."""
        if self.trouble is not None or self.is_waiting:
            LOG.warning(
                "The journal can be written again; %d of %d waiting entries were not kept.",
                self._kinds.total() - len(self.kept),
                self._kinds.total(),
            )
            self.trouble, self._tries = None, 0
            self.trainers, self.pilots, self.texts, self._kinds = {}, {}, {}, Counter()
            self.kept.clear()


Write = Callable[[list[EntryDraft | Large], Backlog | None], None]


class Beside:
    """The thread and its queue."""

    def __init__(self, write: Write) -> None:
        """Start the thread.

        Args:
            write: called in the thread with entries and the backlog that follows them; called
                without either every ``PERIOD_S``.
        """
        self._write = write
        self._changed = threading.Condition()
        self._queue: deque[EntryDraft | Large] = deque()
        self._late = Backlog()  # newer than everything in the queue
        self._is_writing = self._is_stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, item: EntryDraft | Large) -> None:
        """Queue an entry.

        Raises:
            BaseException: the error that ended the thread.
        """
        self.check()
        with self._changed:
            n_large = sum(isinstance(queued, Large) for queued in self._queue)
            is_full = len(self._queue) >= QUEUED or (
                isinstance(item, Large) and n_large >= LARGE_QUEUED
            )
            if is_full or self._late.is_waiting:
                self._late.add(item)
            else:
                self._queue.append(item)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._failure is not None:
            raise self._failure

    def flush(self) -> None:
        """Wait until all is written or in the backlog of an outage, at most 10 s."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._has_work(), LONGEST_FLUSH_S)

    def stop(self) -> None:
        """Write the rest and end the thread. Safe to call twice."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _has_work(self) -> bool:
        return bool(self._queue) or self._late.is_waiting or self._is_writing

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as failure:  # noqa: BLE001 - raised at the next ``put`` or ``check``
            with self._changed:
                self._failure, self._is_writing = failure, False
                self._changed.notify_all()

    def _turn(self) -> bool:
        """Write once; return whether to continue."""
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._has_work() or self._is_stopping, PERIOD_S)
            if self._is_stopping and not self._has_work():
                return False
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            late = None
            if not self._queue and self._late.is_waiting:
                late, self._late = self._late, Backlog()
            self._is_writing = True
        self._write(batch, late)
        return True
