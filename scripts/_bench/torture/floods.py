"""What the submit helper starts as eve is hers: she writes into its output, holds and stops it.

Her trainer waits for a node. The daemon asks for a pilot, the helper runs sbatch with her rights,
and she comes to its output by /proc. She cancels what pilots come of it, so that it goes on.
"""

from __future__ import annotations

import contextlib
import getpass
import math
import os
import random
import signal
import time
from pathlib import Path

from _bench.torture.jobs import run

BLOCK = b"4711" * (1 << 18)
MOST_BYTES = 1 << 30
FULL_S = 1.0  # a pipe that is not read for so long is not read any more
HELD_S = 45.0  # longer than the helper waits
AGAIN_S = 5.0


class Flooder:
    """Looks for an sbatch of hers that she did not start; ``spared``: a node whose pilot stays."""

    def __init__(self, spared: str) -> None:
        self._spared = spared
        self._known: set[int] = set()
        self._held: list[tuple[float, int, int]] = []  # until, descriptor, process
        self._cancelled_s = 0.0

    def flood(self, chance: random.Random) -> str:
        """Do one of them to each that runs now."""
        self._let_go(time.monotonic())
        if time.monotonic() > self._cancelled_s + AGAIN_S:
            self._cancelled_s = time.monotonic()
            self._cancel()
        outcome = "none runs"
        for pid in set(_submissions()) - self._known:
            self._known.add(pid)
            with contextlib.suppress(OSError):
                outcome = self._attack(pid, chance.choice(("flood", "hold", "stop")))
        return outcome

    def _attack(self, pid: int, how: str) -> str:
        output = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
        if how != "flood":
            if how == "stop":
                os.kill(pid, signal.SIGSTOP)
            self._held.append((time.monotonic() + HELD_S, output, pid))
            return how
        n_bytes, last_s = 0, time.monotonic()
        with contextlib.suppress(OSError):
            while n_bytes < MOST_BYTES and time.monotonic() < last_s + FULL_S:
                try:
                    n_bytes += os.write(output, BLOCK)
                    last_s = time.monotonic()
                except BlockingIOError:
                    time.sleep(0.001)
        os.close(output)
        return "flood, over 64 MB taken" if n_bytes > 64 << 20 else "flood"

    def end(self) -> None:
        """Let go all."""
        self._let_go(math.inf)

    def _let_go(self, until_s: float) -> None:
        while self._held and self._held[0][0] < until_s:
            _, output, pid = self._held.pop(0)
            os.close(output)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _cancel(self) -> None:
        listed = run("squeue", "-h", "-u", getpass.getuser(), "-p", "bf", "-t", "R", "-o", "%i %N")
        for job, node in (line.split() for line in listed.stdout.splitlines()):
            if node != self._spared:
                run("scancel", job)


def _submissions() -> list[int]:
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_pilot = any(word.startswith(b"--job-name=p0") for word in words)
            is_hers = entry.stat().st_uid == os.getuid()
            if words[0].endswith(b"sbatch") and is_pilot and is_hers:
                pids.append(int(entry.name))
    return pids
