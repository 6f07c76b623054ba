"""Work of the daemon beside its loops, and threads that run from the start.

Python starts the threads of a pool when there is work. On a host at its limit of processes that
fails with ``RuntimeError``, in the middle of the daemon's work, and would end the daemon.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

LOG = logging.getLogger("bftrainer.daemon")


class Background:
    """The tasks under way, so that none of them is collected before its end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[None]] = set()

    def run(self, work: Awaitable[None]) -> None:
        """Start work and return; call it in the event loop."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            LOG.error("background work failed", exc_info=task.exception())


def ready_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of so many threads, all started."""
    pool, all_there = ThreadPoolExecutor(count, name), Barrier(count)
    for thread in [pool.submit(all_there.wait) for _ in range(count)]:
        thread.result()
    return pool
