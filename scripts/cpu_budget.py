#!/usr/bin/env python3
"""Runs a command and says how much processor time it took; fails above a budget.

Time is told in that of the budget's machine: a short loop, timed again and again while the command
runs, says how fast this one is; a faster machine is allowed less. Counted are the command and all
that it started and that has ended, also what its parents left behind.

Files of tests tell their part (``tests/support/costs.py``). The ten costliest are printed, and by
how much the whole exceeds ``tests/costs.json``, which ``--accept`` writes from the last run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
LOOP_S = 0.0044  # of ``loop`` on the machine that the budgets were made for, doing nothing else
EVERY_S = 10.0
# Starting processes and reading their modules is half of what tests do, and not as much faster on
# a machine whose loop is: the same tests took 14 of the budget's minutes on one, 20 on another.
MARGIN = 1.5

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "costs.json"  # seconds of the budget's machine, by file of tests
LAST = ROOT / ".pytest_cache" / "costs.json"  # of the last run
COSTS_VARIABLE = "BFTRAINER_COSTS"  # as in tests/support/costs.py
OTHERS = "(not told by a file)"
MOST = 10


def loop() -> float:
    """Interpret some plain Python; return the processor time that it took."""
    began_s, table = time.thread_time(), {}
    for number in range(100_000):
        table[number & 1023] = number
    return time.thread_time() - began_s


def taken_by(argv: list[str], environment: Mapping[str, str]) -> tuple[int, float]:
    """Run a command; return its exit status and the seconds that it and its descendants took."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child, taken_s = subprocess.Popen(argv, env=environment), 0.0
    while True:
        pid, status, usage = os.wait4(-1, 0)
        taken_s += usage.ru_utime + usage.ru_stime
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode, taken_s


def told_in(directory: Path) -> dict[str, float]:
    """Return the seconds of each file of tests, on this machine."""
    seconds: dict[str, float] = defaultdict(float)
    for path in directory.glob("*.json"):
        for name, told_s in read(path).items():
            seconds[name] += told_s
    return seconds


def written(seconds: Mapping[str, float]) -> str:
    """Render seconds by file: one line each, so that changes can be read."""
    lines = (f"{json.dumps(name)}: {seconds[name]:.1f}" for name in sorted(seconds))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(path: Path) -> dict[str, float]:
    """Read seconds by file; none where there is no such record."""
    seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    return seconds


def report(seconds: Mapping[str, float], kept: Mapping[str, float]) -> list[str]:
    """Return the lines about files: the costliest ones, and what is more than was kept."""
    costliest = sorted(seconds, key=lambda name: (-seconds[name], name))[:MOST]
    lines = [f"{seconds[n]:8.1f} s {seconds[n] - kept.get(n, 0.0):+8.1f}  {n}" for n in costliest]
    if kept:
        more_s = sum(seconds.values()) - sum(kept.values())
        lines.append(f"{more_s:+.1f} s against tests/costs.json; an issue may add 40")
    return lines


def main() -> int:
    """Parse, run, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, help="of the budget's machine's processor time")
    parser.add_argument("--accept", action="store_true", help="keep the last run's costs")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if options.accept:
        KEPT.write_text(written(read(LAST)))
        return 0
    if options.minutes is None or not options.command:
        parser.error("--minutes and a command, or --accept")
    loops, is_over = [loop()], threading.Event()

    def time_loops() -> None:
        while not is_over.wait(EVERY_S):
            loops.append(loop())

    began_s, timing = time.monotonic(), threading.Thread(target=time_loops)
    timing.start()
    with TemporaryDirectory() as directory:
        try:
            environment = {**os.environ, COSTS_VARIABLE: directory}
            returncode, taken_s = taken_by(options.command, environment)
        finally:
            is_over.set()
            timing.join()
        seconds_of = told_in(Path(directory))
    scale = mean(loops) / LOOP_S
    minutes = taken_s / 60 / scale
    if seconds_of:
        seconds_of[OTHERS] = taken_s - sum(seconds_of.values())
        seconds = {name: told_s / scale for name, told_s in seconds_of.items()}
        LAST.parent.mkdir(exist_ok=True)
        LAST.write_text(written(seconds))
        print(*report(seconds, read(KEPT)), sep="\n")
    print(
        f"processor time: {minutes:.1f} min of the budget's machine, of {options.minutes:g};"
        f" {taken_s / 60:.1f} min here, in {(time.monotonic() - began_s) / 60:.1f} min: this"
        f" machine takes {scale:.2f} times as long. Up to {options.minutes * MARGIN:g} are no"
        " failure",
        flush=True,
    )
    if returncode == 0 and minutes > options.minutes * MARGIN:
        print("cpu_budget: too much", file=sys.stderr)
        return 3
    return returncode if returncode >= 0 else 128 - returncode


if __name__ == "__main__":
    sys.exit(main())
