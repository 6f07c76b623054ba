"""Keeps a small Slurm cluster busy, as a larger one is by itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def busy(command: Callable[..., object]) -> Iterator[None]:
    """Change something every second.

    Backfill passes over its queue only when something changed since its last pass;
    where nothing else happens, it would rest for up to 40 s.
    """
    ended = threading.Event()

    def change_something() -> None:
        while not ended.wait(1.0):
            command("scontrol", "update", "PartitionName=batch", "State=UP")

    thread = threading.Thread(target=change_something, name="busy-cluster")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
