"""Times and gaps of what surrounds the sizes: classes, costs, victims, checker.

Each function draws its problems, measures, and returns its lines of the table with
its targets; called by ``bench_solvers.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from _bench.benchmark import note
from _bench.placement import PARTS, draw_placement, placement_gap
from _bench.problems import draw_problem
from _bench.targets import Target
from _bench.timing import Part, Row, best_of, median_target, summary
from milp.check import check, find_violations
from milp.options import build_options
from milp.placement.place import place
from milp.pool import view_pool
from milp.problem import Allocation, Problem
from milp.solve import solve, solve_sizes
from milp.victims import choose_victims

SIZE = (30, 800)
VICTIMS = (1, 40, 761)  # at most; 761: the 99th percentile of one event on Summit
CHECK_TARGET_S, VICTIMS_TARGET_S = 0.0002, 0.001
CLASSES_TARGET_S = 1.0
PLACEMENT_SIZES = ((100, 4000), (1000, 10000))
PLACEMENT_TARGET_S = 0.020


def measure_checker(runs: int) -> Part:
    """Time the checker on good answers, as it runs on every plan."""
    times_s: list[float] = []
    for seed in range(runs):
        problem = draw_problem(*SIZE, "mixed", seed)
        took_s, found = best_of(find_violations, problem, solve(problem))
        if found:
            raise SystemExit(f"the checker objects: {found[0]}")
        times_s.append(took_s)
    row = summary("checker", "mixed", SIZE, times_s, "no violation")
    return Part(
        title="Checker", rows=(row,), targets=(median_target("checker", row, CHECK_TARGET_S),)
    )


def measure_victims(runs: int) -> Part:
    """Time the choice of the nodes to give back."""
    rows: list[Row] = []
    problems = [draw_problem(*SIZE, "mixed", seed) for seed in range(runs)]
    for count in VICTIMS:
        times_s: list[float] = []
        for problem in problems:
            wanted = min(count, sum(len(trainer.current) for trainer in problem.trainers))
            took_s, victims = best_of(choose_victims, problem, wanted)
            if len(victims.nodes) != wanted:
                raise SystemExit(f"{wanted} victims were asked for, {len(victims.nodes)} chosen")
            times_s.append(took_s)
        rows.append(summary(f"victims, up to {count} nodes", "mixed", SIZE, times_s, "exact"))
    targets = tuple(median_target(row.what, row, VICTIMS_TARGET_S) for row in rows)
    return Part(title="Victims", rows=tuple(rows), targets=targets)


def measure_placement(runs: int, compared: int) -> Part:
    """Time the choice of nodes for given sizes; hold it against the MILP of its rule."""
    note("nodes for the sizes, and the MILP of their rule")
    rows: list[Row] = []
    for size in PLACEMENT_SIZES:
        times_s: list[float] = []
        for seed in range(runs):
            problem = draw_problem(*size, "ends", seed)
            pool = view_pool(problem)
            sizes = solve_sizes(build_options(problem, pool)).sizes.tolist()
            times_s.append(best_of(place, problem, pool, [[size] for size in sizes])[0])
        rows.append(summary("nodes for the sizes", "ends", size, times_s))
    rows.append(_placement_gaps(compared))
    target = median_target("nodes for the sizes", rows[0], PLACEMENT_TARGET_S)
    return Part(title="Nodes", rows=tuple(rows), targets=(target,))


def _placement_gaps(count: int) -> Row:
    """Hold the choice of nodes against the node-level MILP of its rule, on small problems."""
    times_s: list[float] = []
    optimal = 0
    excess, least = [0.0] * len(PARTS), [0.0] * len(PARTS)
    for seed in range(count):
        problem, sizes = draw_placement(seed)
        split = [[size] for size in sizes]
        took_s, assignment = best_of(place, problem, view_pool(problem), split)
        times_s.append(took_s)
        gap = placement_gap(problem, assignment)
        optimal += gap.is_optimal()
        excess = [a + b for a, b in zip(excess, gap.excess(), strict=True)]
        least = [a + b for a, b in zip(least, gap.least, strict=True)]
    above = {
        name.replace("_", " "): 100 * more / of
        for name, more, of in zip(PARTS, excess, least, strict=True)
        if of and more / of > 1e-6
    }
    told = [f"{optimal} of {count} optimal", *(f"{n} {p:.2g} % above" for n, p in above.items())]
    return summary("nodes for the sizes", "against the MILP", (7, 48), times_s, ", ".join(told))


def measure_classes(runs: int) -> Part:
    """Time two to six classes and mixes, and see that every optimum is proven."""
    rows: list[Row] = []
    targets: list[Target] = []
    for family in ("2 classes", "3 classes", "mixes", "6 classes"):
        row, gaps = _solved("exact, whole decision", family, runs)
        rows.append(row)
        if family != "6 classes":  # more types than sites have: told, without a limit
            targets.append(_p95_target(f"{family}, whole decision", row, CLASSES_TARGET_S))
        targets.append(
            Target(
                name=f"{family}: optimum proven",
                measured=sum(gap == 0 for gap in gaps) / len(gaps),
                limit=1.0,
                relation=">=",
                unit="of all",
                note=f"{runs} problems",
            )
        )
    return Part(title="Classes", rows=tuple(rows), targets=tuple(targets))


def _p95_target(name: str, row: Row, limit_s: float) -> Target:
    return Target(
        name=f"{name}, {row.trainers} x {row.nodes}",
        measured=row.p95_s,
        limit=limit_s,
        relation="<=",
        note=f"95th percentile of {row.runs}",
    )


def gap_text(gaps: Sequence[float]) -> str:
    """Relative gaps in words."""
    proven = sum(gap == 0 for gap in gaps)
    if proven == len(gaps):
        return "optimal"
    return (
        f"{proven} of {len(gaps)} optimal, gap {100 * fmean(gaps):.2g} % mean,"
        f" {100 * max(gaps):.2g} % max"
    )


def _solved(
    what: str, family: str, runs: int, call: Callable[[Problem], Allocation] = solve
) -> tuple[Row, list[float]]:
    """Time a solver on a family; its relative gaps, 0 where the optimum is proven."""
    note(f"{what}: {family}")
    times_s: list[float] = []
    gaps: list[float] = []
    for seed in range(runs):
        problem = draw_problem(*SIZE, family, seed)
        took_s, allocation = best_of(call, problem)
        check(problem, allocation)
        times_s.append(took_s)
        gaps.append(allocation.gap / max(abs(allocation.objective), 1e-300))
    return summary(what, family, SIZE, times_s, gap_text(gaps)), gaps
