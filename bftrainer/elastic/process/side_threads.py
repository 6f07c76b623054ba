"""Threads that wait inside native code, and what becomes of them when the interpreter ends.

A thread that comes back from gloo or NCCL while Python is being taken down is ended by
``pthread_exit`` inside C++, which does not expect it: "terminate called without an active
exception", and the process ends with status 134 (before Python 3.14, which leaves such a thread
asleep). So the interpreter waits for them first, but not for one that hangs. Workers end by
``os._exit`` and wait for nothing (``worker.leave``). Standard library only.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

LAST_WAIT_S = 5.0  # groups take up to 80 ms to end, and a collective that hangs 30 s

_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start_aside(action: Callable[..., Any], *arguments: Any, name: str) -> None:
    """Run an action in a thread of its own; nobody waits for it before the interpreter ends."""
    thread = threading.Thread(target=action, args=arguments, name=name, daemon=True)
    _threads.add(thread)
    thread.start()


def await_ends() -> None:
    """Wait until all these threads have ended, at most ``LAST_WAIT_S`` for them together."""
    end_s = time.monotonic() + LAST_WAIT_S
    for thread in list(_threads):
        if thread is not threading.current_thread():
            thread.join(max(0.0, end_s - time.monotonic()))


atexit.register(await_ends)
