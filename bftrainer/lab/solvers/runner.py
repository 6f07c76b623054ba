"""Runs a solver as a child process with limits, and keeps the problem of a failure.

A request of ``milp.reference.guard`` comes in, a RunnerReport goes out; never an
exception for what the child does. Handed to ``milp.reference.guard.solve_limited``.

A Problem and a solver's name come in, a LimitedAnswer goes out. On failure the problem
is written into the dump directory, in the form that ``bftrainer solve`` reads.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bftrainer.batch import process
from bftrainer.ground.process import own_name
from bftrainer.lab.solvers.child import OUT_OF_MEMORY, WORK
from milp.codec import canonical_json, problem_hash, problem_to_dict
from milp.problem import Problem
from milp.reference.guard import (
    MEMORY_LIMIT_BYTES,
    LimitedAnswer,
    Runner,
    RunnerReport,
    solve_limited,
)

# How long after its limit a child may still read back what it found.
GRACE_S = 0.5
NO_LIMIT_S = 1e6
OUTPUT_CAP_BYTES = 16 * 1024 * 1024
# A solver that fails on every event must not fill the disk; the first failures tell most.
MOST_DUMPS = 100
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRunner:
    """Starts ``python -m bftrainer.lab.solvers.child``; ``work`` is the function it calls."""

    work: str = WORK

    def run(
        self, request_json: str, *, time_limit_s: float | None, memory_limit_bytes: int
    ) -> RunnerReport:
        """Return the child's answer, or how it failed, within the limit and a second."""
        argv = [*process.own_python("bftrainer.lab.solvers.child", "--work", self.work)]
        argv += ["--memory-bytes", str(memory_limit_bytes)]
        timeout_s = NO_LIMIT_S
        if time_limit_s is not None:
            argv += ["--deadline-s", repr(time.monotonic() + time_limit_s)]
            timeout_s = time_limit_s + GRACE_S
        child = process.run(
            argv,
            timeout_s=timeout_s,
            env={**os.environ, **ONE_THREAD},
            stdin=request_json,
            output_cap_bytes=OUTPUT_CAP_BYTES,
        )
        failure = _failure(child, time_limit_s, memory_limit_bytes)
        return RunnerReport(stdout=child.stdout, failure=failure)


def _failure(child: process.Completed, time_limit_s: float | None, memory_limit_bytes: int) -> str:
    if child.timed_out:
        limit_s = NO_LIMIT_S if time_limit_s is None else time_limit_s
        return f"did not end within its {limit_s:g} s and was killed"
    if child.truncated:
        return f"printed more than {OUTPUT_CAP_BYTES} bytes and was killed"
    if child.returncode == OUT_OF_MEMORY:
        return f"needed more than its {memory_limit_bytes} bytes of memory"
    if child.returncode < 0:
        return f"died of {_signal_name(-child.returncode)}{_last_line(child.stderr)}"
    if child.returncode > 0:
        return f"ended with status {child.returncode}{_last_line(child.stderr)}"
    return ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(stderr: str) -> str:
    lines = stderr.strip().splitlines()
    if not lines:
        return ""
    return f" ({lines[-1][:200]})"


def solve_in_child(
    problem: Problem,
    *,
    solver: str,
    time_limit_s: float | None = None,
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    dump_dir: Path | None = None,
    runner: Runner | None = None,
) -> LimitedAnswer:
    """Return a legal allocation within the limit and a second, whatever the solver does.

    Args:
        problem: what to decide.
        solver: highs, gurobi or cbc.
        time_limit_s: for start, model and search together; None: as long as it takes.
        memory_limit_bytes: address space of the solver's process.
        dump_dir: where the problem is kept when the solver fails; None: nowhere.
        runner: starts the solver; None: a child process of this interpreter.

    Raises:
        milp.problem.ProblemError: the problem is malformed.
    """
    answer = solve_limited(
        problem,
        solver=solver,
        time_limit_s=time_limit_s,
        runner=runner or ChildRunner(),
        memory_limit_bytes=memory_limit_bytes,
    )
    if not answer.failure or dump_dir is None:
        return answer
    return replace(answer, failure=f"{answer.failure} {_dump(problem, solver, dump_dir)}")


def _dump(problem: Problem, solver: str, dump_dir: Path) -> str:
    """Keep the problem under the name of its hash; say where, or why not."""
    path = dump_dir / f"problem-{solver}-{problem_hash(problem)[:16]}.json"
    try:
        dump_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(list(dump_dir.glob("problem-*.json"))) >= MOST_DUMPS and not path.exists():
            return f"The problem was not kept: {dump_dir} already has {MOST_DUMPS} of them."
        part = path.with_suffix(f".{own_name()}.part")
        part.write_text(canonical_json(problem_to_dict(problem)), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        return f"The problem could not be kept: {error}."
    return f"The problem is kept in {path}."
