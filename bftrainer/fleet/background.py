"""Work of the daemon beside its loops, and threads that run from the start.

Python starts the threads of a pool when there is work. On a host at its limit of processes that
fails with ``RuntimeError``, in the middle of the daemon's work, and would end the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread
from typing import TypeVar

LOG = logging.getLogger("bftrainer.daemon")
T = TypeVar("T")


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


def in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run blocking work in a thread that is never joined; call it in the event loop."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, problem: Exception | None) -> None:
        if answer.done():
            return
        if problem is not None:
            answer.set_exception(problem)
        else:
            answer.set_result(value)  # type: ignore[arg-type]  # of work

    def run() -> None:
        try:
            value, problem = work(), None
        except Exception as raised:  # noqa: BLE001 - passed to who waits
            value, problem = None, raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, value, problem)

    Thread(target=run, name=name, daemon=True).start()
    return answer


def ready_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of so many threads, all started."""
    pool, all_there = ThreadPoolExecutor(count, name), Barrier(count)
    for thread in [pool.submit(all_there.wait) for _ in range(count)]:
        thread.result()
    return pool
