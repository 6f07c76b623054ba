"""Decides with a solver in a child process and keeps the problem of a failure.

A Problem and a solver's name come in, a LimitedAnswer goes out. On failure the problem
is written into the dump directory, in the form that ``bftrainer solve`` reads.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bftrainer.elastic.unique_name import own_name
from bftrainer.lab.solvers.runner import ChildRunner
from milp.codec import canonical_json, problem_hash, problem_to_dict
from milp.problem import Problem
from milp.reference.guard import MEMORY_LIMIT_BYTES, LimitedAnswer, Runner, solve_limited

# A solver that fails on every event must not fill the disk; the first failures tell most.
MOST_DUMPS = 100


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
        milp.errors.ProblemError: the problem is malformed.
    """
    answer = solve_limited(
        problem,
        solver=solver,
        time_limit_s=time_limit_s,
        runner=ChildRunner() if runner is None else runner,
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
