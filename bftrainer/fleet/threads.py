"""Thread pools of the daemon: their threads run from the start.

Python starts the threads of a pool when there is work. On a host that has no more processes to give
that fails with ``RuntimeError``, in the middle of what the daemon does, and would end it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier


def ready_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return a pool of so many threads, all started."""
    pool, all_there = ThreadPoolExecutor(count, name), Barrier(count)
    for thread in [pool.submit(all_there.wait) for _ in range(count)]:
        thread.result()
    return pool
