"""The paper's node-level MILP on HiGHS, Gurobi and CBC: times, gaps, refusals.

Each solve runs in a child process with a limit of time and memory, as it would beside a
daemon. A problem with nothing to decide tells what starting such a process takes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from _bench.benchmark import note
from _bench.targets import Target, at_least, at_most
from _bench.timing import Part, Row, best_of, summary
from bftrainer.lab.solvers.runner import ChildRunner
from milp.check import check
from milp.options import build_options
from milp.pool import view_pool
from milp.problem import Problem
from milp.reference.backends import BACKENDS, ModelStatus, is_installed
from milp.reference.guard import solve_limited
from milp.solve import solve, solve_sizes
from tests.support.drawn_problems import draw_problem

RATIO_SIZE: Final = (30, 800)
RATIO_TARGET: Final = 10_000.0
TOLERANCE: Final = 1e-6  # relative: solvers' own
BEYOND_TARGET_S: Final = 1.0  # a decision may take that much longer than its limit
NOTHING_SIZE: Final = (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solve:
    """One reference solve, beside the exact optimum of the same problem."""

    wall_s: float
    status: str
    failure: str
    gap: float  # of the answer to the optimum, relative


def measure(amounts: Mapping[tuple[int, int], int], limit_s: float) -> Part:
    """Solve some problems of each size with each solver that is installed."""
    rows: list[Row] = []
    targets: list[Target] = []
    beyond_s = 0.0
    nothing = draw_problem(*NOTHING_SIZE, "equal", 1)
    for solver in BACKENDS:
        if not is_installed(solver):
            note(f"{solver} is not installed and not measured")
            continue
        start_s = min(_solve(solver, nothing, limit_s).wall_s for _ in range(2))
        rows.append(summary(f"{solver}, start", "nothing to decide", NOTHING_SIZE, [start_s]))
        for size, count in amounts.items():
            note(f"{solver}: {size[0]} x {size[1]}, {count} times at most {limit_s:g} s")
            problems = [draw_problem(*size, "mixed", seed) for seed in range(count)]
            solves = [_solve(solver, problem, limit_s) for problem in problems]
            rows.append(_row(f"{solver}, node-level", size, solves))
            beyond_s = max(beyond_s, *(outcome.wall_s - limit_s for outcome in solves))
            if size == RATIO_SIZE and solver == "highs":
                targets.append(_ratio(problems, solves, start_s))
    name = "reference solvers: longest time beyond the limit"
    targets.append(at_most(name, beyond_s, BEYOND_TARGET_S, note=f"limit {limit_s:g} s"))
    return Part(title="The paper's node-level MILP", rows=tuple(rows), targets=tuple(targets))


def _solve(solver: str, problem: Problem, limit_s: float) -> _Solve:
    optimum = solve(problem).objective
    before = time.perf_counter()
    answer = solve_limited(problem, solver=solver, time_limit_s=limit_s, runner=ChildRunner())
    wall_s = time.perf_counter() - before
    check(problem, answer.allocation)
    gap = (optimum - answer.allocation.objective) / max(abs(optimum), 1e-300)
    if abs(gap) > TOLERANCE and answer.status == ModelStatus.OPTIMAL:
        raise SystemExit(f"{solver} calls optimal what is {gap:.2g} off: a bug")
    return _Solve(wall_s=wall_s, status=answer.status, failure=answer.failure, gap=gap)


def _row(what: str, size: tuple[int, int], solves: Sequence[_Solve]) -> Row:
    """One line; the times are also those of refusals and of what the limit ended."""
    outcomes = Counter(_outcome(outcome) for outcome in solves)
    for failure in sorted({outcome.failure for outcome in solves if outcome.failure}):
        note(failure)
    return summary(
        what,
        "mixed",
        size,
        [outcome.wall_s for outcome in solves],
        ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()),
        at_limit=sum(outcome.status != ModelStatus.OPTIMAL for outcome in solves),
    )


def _outcome(one: _Solve) -> str:
    if one.status == ModelStatus.FEASIBLE:
        return f"at the limit, {100 * one.gap:.2g} % off"
    if one.status == ModelStatus.NOTHING:
        return "found nothing"
    if "memory" in one.failure:
        return "out of memory"
    if "killed" in one.failure:
        return "killed at the limit"
    return one.status


def _ratio(problems: Sequence[Problem], solves: Sequence[_Solve], start_s: float) -> Target:
    """How much longer the node-level model takes than the exact solution.

    What the limit ended would have taken longer: the ratio is then at least what is told.
    """
    highs_s = median(outcome.wall_s - start_s for outcome in solves)
    tables = [build_options(problem, view_pool(problem)) for problem in problems]
    sizes_s = median(best_of(solve_sizes, table)[0] for table in tables)
    whole_s = median(best_of(solve, problem)[0] for problem in problems)
    ended = sum(outcome.status != ModelStatus.OPTIMAL for outcome in solves)
    sample = f"median of {len(solves)}, {ended} ended by the limit"
    return at_least(
        "HiGHS, node-level, over the exact sizes, 30 x 800",
        highs_s / sizes_s,
        RATIO_TARGET,
        "",
        f"{sample}; {highs_s / whole_s:,.0f} x the whole decision",
    )
