"""How long the exact solution takes: sizes alone, and the whole decision.

Sizes are what the targets speak of: from the table of values to the best sizes. The whole
decision adds reading the problem, checking it, the table, choosing the nodes and the
marginal values. The dense program is timed beside both, in the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from _bench.benchmark import note
from _bench.targets import Target
from _bench.timing import Part, Row, best_of, max_target, median_target, summary
from milp.check import check
from milp.codec import problem_hash
from milp.options import Options, build_options
from milp.pool import view_pool
from milp.problem import Problem
from milp.solve import solve, solve_dense, solve_sizes
from tests.support.drawn_problems import ADVERSARIAL, draw_problem

SIZES_TARGET_S: Final[Mapping[tuple[int, int], float]] = {
    (10, 100): 0.00015,
    (30, 800): 0.0003,
    (100, 4000): 0.001,
    (1000, 10000): 0.002,
}
MAX_OVER_MEDIAN: Final = 3.0
DECISION_TARGET_S: Final = {(10, 100): 0.001, (30, 800): 0.010, (100, 4000): 0.150}
ADVERSARIAL_TARGET_S: Final = 0.035
WIDE_SIZE, WIDE_TARGET_S = (100, 4000), 0.020


def measure_sizes(runs: int, *, is_quick: bool) -> Part:
    """Time the sizes alone on every family, and compare them with the dense program's.

    That one takes seconds at the largest size: two problems there, none when quick.
    """
    rows: list[Row] = []
    targets: list[Target] = []
    for size, limit_s in SIZES_TARGET_S.items():
        is_large = size == max(SIZES_TARGET_S)
        dense_runs = (0 if is_quick else 2) if is_large else max(runs // 10, 2)
        for family in ("mixed", *ADVERSARIAL):
            note(f"exact, sizes: {family} {size[0]} x {size[1]}")
            problems = [draw_problem(*size, family, seed) for seed in range(runs)]
            row, *dense = _sizes(family, size, problems, dense_runs)
            rows += [row, *dense]
            if family == "mixed":
                targets.append(median_target("sizes", row, limit_s))
                targets.append(max_target("sizes", row, MAX_OVER_MEDIAN * limit_s))
            else:
                targets.append(max_target(f"sizes, {family}", row, ADVERSARIAL_TARGET_S))
    problems = [draw_problem(*WIDE_SIZE, "wide", seed) for seed in range(runs)]
    row, *dense = _sizes("wide", WIDE_SIZE, problems, dense_runs=0 if is_quick else 1)
    rows += [row, *dense]
    targets.append(median_target("sizes, n_max = N", row, WIDE_TARGET_S))
    return Part(title="Sizes", rows=tuple(rows), targets=tuple(targets))


def measure_decisions(runs: int, *, is_quick: bool) -> Part:
    """Time the whole decision: solve, and what the daemon does around it."""
    rows: list[Row] = []
    for size in ((5, 20), *SIZES_TARGET_S):
        note(f"whole decision: {size[0]} x {size[1]}")
        is_large = size == max(SIZES_TARGET_S)
        count = 2 if is_quick and is_large else runs
        problems = [draw_problem(*size, "mixed", seed) for seed in range(count)]
        times_s: dict[str, list[float]] = {}
        for problem in problems:
            took_s, allocation = best_of(solve, problem)
            times_s.setdefault("exact, whole decision", []).append(took_s)
            check(problem, allocation)
            took_s, _ = best_of(_tabulate, problem)
            times_s.setdefault("... table of values", []).append(took_s)
            took_s, _ = best_of(_decide, problem)
            times_s.setdefault("... checked and hashed", []).append(took_s)
        dense_runs = (0 if is_quick else 1) if is_large else max(runs // 10, 2)
        for problem in problems[:dense_runs]:
            took_s, allocation = best_of(solve_dense, problem)
            times_s.setdefault("dense, whole decision", []).append(took_s)
        rows += [summary(part, "mixed", size, values_s) for part, values_s in times_s.items()]
    targets = [
        median_target("whole decision", row, DECISION_TARGET_S[row.trainers, row.nodes])
        for row in rows
        if row.what == "exact, whole decision" and (row.trainers, row.nodes) in DECISION_TARGET_S
    ]
    return Part(title="Whole decision", rows=tuple(rows), targets=tuple(targets))


def _decide(problem: Problem) -> str:
    """Decide as the daemon does: the policy and the checker, and the problem's hash."""
    check(problem, solve(problem))
    return problem_hash(problem)


def _tabulate(problem: Problem) -> Options:
    return build_options(problem, view_pool(problem))


def _sizes(
    family: str, size: tuple[int, int], problems: Sequence[Problem], dense_runs: int
) -> list[Row]:
    """Lines of the exact sizes and, if it runs, of the dense program, which has to agree."""
    exact_s: list[float] = []
    dense_s: list[float] = []
    for i, problem in enumerate(problems):
        table = _tabulate(problem)
        took_s, answer = best_of(solve_sizes, table)
        exact_s.append(took_s)
        if i < dense_runs:
            took_s, dense = best_of(partial(solve_sizes, is_dense=True), table)
            dense_s.append(took_s)
            if answer.sizes.tolist() != dense.sizes.tolist():
                raise SystemExit(f"exact and dense differ on {family} {size}, seed {i}: a bug")
    rows = [summary("exact, sizes", family, size, exact_s, "optimal")]
    if dense_s:
        rows.append(summary("dense, sizes", family, size, dense_s, "the same sizes"))
    return rows
