"""Runs a solver as a child process with limits, and says how it ended.

A request of ``milp.reference.request`` comes in, a RunnerReport goes out; never an
exception for what the child does. Handed to ``milp.reference.guard.solve_limited``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass

from bftrainer.batch import process
from bftrainer.lab.solvers.child import OUT_OF_MEMORY, WORK
from milp.reference.guard import RunnerReport

# How long after its limit a child may still read back what it found.
GRACE_S = 0.5
NO_LIMIT_S = 1e6
OUTPUT_CAP_BYTES = 16 * 1024 * 1024
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRunner:
    """Starts ``python -m bftrainer.lab.solvers.child``; ``work`` is the function it calls."""

    work: str = WORK

    def run(
        self, request_json: str, *, time_limit_s: float | None, memory_limit_bytes: int
    ) -> RunnerReport:
        """Return the child's answer, or how it failed, within the limit and a second."""
        # -P: nothing in the working directory may take the place of a package.
        argv = [sys.executable, "-P", "-m", "bftrainer.lab.solvers.child", "--work", self.work]
        argv += ["--memory-bytes", str(memory_limit_bytes)]
        timeout_s = NO_LIMIT_S
        if time_limit_s is not None:
            argv += ["--deadline-s", repr(time.monotonic() + time_limit_s)]
            timeout_s = time_limit_s + GRACE_S
        done = process.run(
            argv,
            timeout_s=timeout_s,
            env={**os.environ, **ONE_THREAD},
            stdin=request_json,
            output_cap_bytes=OUTPUT_CAP_BYTES,
        )
        return RunnerReport(
            stdout=done.stdout, failure=_failure(done, time_limit_s, memory_limit_bytes)
        )


def _failure(done: process.Completed, time_limit_s: float | None, memory_limit_bytes: int) -> str:
    if done.timed_out:
        limit_s = NO_LIMIT_S if time_limit_s is None else time_limit_s
        return f"did not end within its {limit_s:g} s and was killed"
    if done.truncated:
        return f"printed more than {OUTPUT_CAP_BYTES} bytes and was killed"
    if done.returncode == OUT_OF_MEMORY:
        return f"needed more than its {memory_limit_bytes} bytes of memory"
    if done.returncode < 0:
        return f"died of {_signal_name(-done.returncode)}{_last_line(done.stderr)}"
    if done.returncode > 0:
        return f"ended with status {done.returncode}{_last_line(done.stderr)}"
    return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    return f" ({lines[-1][:200]})" if lines else ""
