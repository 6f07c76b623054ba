"""A thread that writes entries in order, so that ``Journal.note`` does not wait for the disk.

Entries beyond the queue's limits go into a backlog, as in an outage.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from bftrainer.journal.backlog import Backlog, EntryDraft, Large

QUEUED: Final = 1000  # entries that wait for the disk
LARGE_QUEUED: Final = 8  # large ones among them: each holds a whole snapshot
BATCH: Final = 64  # entries in one transaction
LONGEST_FLUSH_S: Final = 10.0
PERIOD_S: Final = 1.0  # between two calls without entries

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
            large = sum(isinstance(one, Large) for one in self._queue)
            is_full = len(self._queue) >= QUEUED or (
                isinstance(item, Large) and large >= LARGE_QUEUED
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
