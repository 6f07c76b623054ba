"""Processors that do not sleep while something short is timed. Called by ``controller``.

An idle virtual processor is handed back to its host, and what it runs next begins with a slow
clock and cold caches: a scheduling cycle of 55 ms took 55 to 90 that way, and less where
something else, an agent for instance, had kept the machine awake. That would compare sleep.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == int(sys.argv[2]):
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def processors_awake() -> Iterator[None]:
    """Let each processor spin, at SCHED_IDLE, whenever nobody else wants it."""
    with ExitStack() as stack:
        for processor in sorted(os.sched_getaffinity(0)):
            argv = [sys.executable, "-c", _SPIN, str(processor), str(os.getpid())]
            spinner = stack.enter_context(subprocess.Popen(argv))
            stack.callback(spinner.kill)
        yield
