#!/usr/bin/env python3
"""Runs a command and says how much processor time it took; fails above a budget.

A machine that is slower, or busy with other work, is allowed more: the budget is scaled by a short
loop that is timed again and again while the command runs, and half of it is added. Counted are the
command and all that it started and that has ended, also what its parents left behind.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import threading
import time
from statistics import mean

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
LOOP_S = 0.0044  # of ``loop`` on the machine that the budgets were made for, doing nothing else
EVERY_S = 10.0
MARGIN = 1.5


def loop() -> float:
    """Interpret some plain Python; return the processor time that it took."""
    began_s, seen = time.thread_time(), {}
    for number in range(100_000):
        seen[number & 1023] = number
    return time.thread_time() - began_s


def taken_by(argv: list[str]) -> tuple[int, float]:
    """Run a command; return its exit status and the seconds that it and its descendants took."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child, taken_s = subprocess.Popen(argv), 0.0
    while True:
        pid, status, usage = os.wait4(-1, 0)
        taken_s += usage.ru_utime + usage.ru_stime
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode, taken_s


def main() -> int:
    """Parse, run, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, required=True, help="of processor time")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    loops, is_over = [loop()], threading.Event()

    def time_loops() -> None:
        while not is_over.wait(EVERY_S):
            loops.append(loop())

    began_s, timing = time.monotonic(), threading.Thread(target=time_loops)
    timing.start()
    try:
        returncode, taken_s = taken_by(options.command)
    finally:
        is_over.set()
        timing.join()
    scale = mean(loops) / LOOP_S
    allowed = options.minutes * max(1.0, scale) * MARGIN
    print(
        f"processor time: {taken_s / 60:.1f} min of {options.minutes:g}, in"
        f" {(time.monotonic() - began_s) / 60:.1f} min; this machine takes {scale:.2f} times as"
        f" long as the budget's, so up to {allowed:.1f} min are no failure",
        flush=True,
    )
    if returncode == 0 and taken_s > 60 * allowed:
        print("cpu_budget: too much", file=sys.stderr)
        return 3
    return returncode if returncode >= 0 else 128 - returncode


if __name__ == "__main__":
    sys.exit(main())
