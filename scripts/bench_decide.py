"""How long a decision takes: exact solver, dense program beside it, the paper's MILP.

Problems are drawn from the curves of the paper's Table 2 with random current sizes.
What is timed is the whole of ``milp.solve.solve``: validation, tables, sizes, nodes,
price and marginal values. Prints targets with met or missed; exit 1 when one is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from _bench.targets import Target, console, exit_code, print_targets, write_json
from rich.table import Table

from bftrainer import process
from milp.check import check
from milp.problem import Allocation, Curve, Problem, ProblemNode, ProblemTrainer
from milp.reference import solve_reference
from milp.solve import solve, solve_dense

CURVE_SIZES = (1, 2, 4, 8, 16, 32, 64)
# Thousands of samples per second on 1..64 Summit nodes (BFTrainer, Table 2).
KILO_SAMPLES_PER_S = {
    "AlexNet": (7.1, 13.1, 21.1, 40.5, 74.0, 130.8, 202.1),
    "ResNet18": (5.2, 10.6, 20.4, 39.6, 78.0, 144.8, 262.7),
    "MnasNet": (3.2, 6.0, 11.5, 23.1, 43.9, 83.5, 160.5),
    "MobileNets": (3.0, 5.9, 11.4, 22.0, 42.5, 82.3, 155.2),
    "ShuffleNet": (2.8, 5.3, 10.0, 20.4, 38.9, 74.1, 145.1),
    "VGG-16": (1.2, 2.4, 4.7, 9.3, 18.3, 36.2, 70.2),
    "DenseNet": (1.0, 2.0, 3.8, 7.6, 15.0, 28.8, 57.8),
}
TARGETS_S = {(10, 100): 0.001, (30, 800): 0.010, (100, 4000): 0.150}
FIRST_CALL_TARGET_S = 0.050
CALLS = 5
FIRST_CALL = """
import sys, time
started = time.perf_counter()
from milp.codec import problem_from_dict
from milp.solve import solve
imported = time.perf_counter()
import json
problem = problem_from_dict(json.load(sys.stdin))
before = time.perf_counter()
solve(problem)
print(imported - started, time.perf_counter() - before)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    family: str
    trainers: int
    nodes: int
    solver: str
    runs: int
    median_s: float
    max_s: float
    note: str = ""


def draw_problem(n_trainers: int, n_nodes: int, family: str, seed: int) -> Problem:
    """Draw a problem: ``mixed`` curves, ``equal`` ones (as in a search), or classes."""
    chance = random.Random(f"{family} {n_trainers} {n_nodes} {seed}")  # noqa: S311 - a benchmark
    classes = "abc"[: int(family[0])] if family.endswith("classes") else "a"
    nodes = tuple(
        ProblemNode(name=f"n{i:05}", eligibility=chance.choice(classes)) for i in range(n_nodes)
    )
    idle: dict[str, list[str]] = {c: [n.name for n in nodes if n.eligibility == c] for c in classes}
    trainers = []
    for j in range(n_trainers):
        model = "ShuffleNet" if family == "equal" else chance.choice(list(KILO_SAMPLES_PER_S))
        n_min = 1 if family == "equal" else chance.choice([1, 1, 2, 4, 8, 16, 32])
        home = chance.choice(classes)
        n_current = chance.randint(0, min(64, 2 * n_nodes // n_trainers, len(idle[home])))
        n_current = n_current if n_current >= n_min else 0
        current, idle[home] = idle[home][:n_current], idle[home][n_current:]
        others = {c for c in classes if chance.random() < 0.5}
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{j}",
                n_min=n_min,
                n_max=64,
                curve=Curve(
                    sizes=CURVE_SIZES,
                    samples_per_s=tuple(1000 * rate for rate in KILO_SAMPLES_PER_S[model]),
                ),
                rescale_up_s=18.0,
                rescale_down_s=12.0,
                current=tuple(current),
                eligible=tuple(sorted({home} | others)) if len(classes) > 1 else (),
            )
        )
    return Problem(nodes=nodes, trainers=tuple(trainers), t_fwd_s=120.0, p_jmax=n_trainers)


def measure(
    family: str, problems: Sequence[Problem], name: str, call: Callable[[Problem], Allocation]
) -> Row:
    """Time one solver on all problems, the best of a few calls each; judge each answer.

    The best call is the one that nothing else on the machine interrupted.
    """
    call(problems[0])
    durations: list[float] = []
    bounded = 0
    for problem in problems:
        calls: list[float] = []
        for _ in range(CALLS):
            before = time.perf_counter()
            allocation = call(problem)
            calls.append(time.perf_counter() - before)
        durations.append(min(calls))
        check(problem, allocation)
        bounded += allocation.solver.startswith("bounded")
    return Row(
        family=family,
        trainers=len(problems[0].trainers),
        nodes=len(problems[0].nodes),
        solver=name,
        runs=len(durations),
        median_s=median(durations),
        max_s=max(durations),
        note=f"{bounded} of {len(durations)} bounded, not proven" if bounded else "",
    )


def measure_all(runs: int) -> list[Row]:
    """All rows but the paper's model."""
    rows: list[Row] = []
    for n_trainers, n_nodes in TARGETS_S:
        for family in ("mixed", "equal"):
            problems = [draw_problem(n_trainers, n_nodes, family, seed) for seed in range(runs)]
            rows.append(measure(family, problems, "exact", solve))
            rows.append(measure(family, problems[: max(runs // 4, 3)], "dense", solve_dense))
            for problem in problems[:3]:
                if solve(problem).assignment != solve_dense(problem).assignment:
                    raise SystemExit("exact and dense differ: this is a bug, report it")
    for family in ("2 classes", "3 classes"):
        problems = [draw_problem(30, 800, family, seed) for seed in range(max(runs // 5, 3))]
        rows.append(measure(family, problems, "exact", solve))
    return rows


def measure_reference() -> list[Row]:
    """The paper's node-level model on HiGHS, and the exact solver on the same problem."""
    problem = draw_problem(5, 30, "mixed", 1)
    problem = replace(
        problem, trainers=tuple(replace(t, n_min=min(t.n_min, 4)) for t in problem.trainers)
    )
    exact = measure("mixed", [problem], "exact", solve)
    before = time.perf_counter()
    reference = solve_reference(problem)
    took_s = time.perf_counter() - before
    value = solve(problem).objective
    if abs(reference.objective - value) > 1e-6 * abs(value):
        raise SystemExit("exact and node-level optimum differ: this is a bug, report it")
    note = f"{took_s / exact.median_s:,.0f} x the exact solver"
    highs = replace(exact, solver="HiGHS, node-level", median_s=took_s, max_s=took_s, note=note)
    return [exact, highs]


def measure_first_call() -> tuple[float, float]:
    """Seconds to import the solver, and of its first call, in a fresh interpreter."""
    # Imported here so that this process's own imports are not what is measured.
    from milp.codec import canonical_json, problem_to_dict  # noqa: PLC0415

    text = canonical_json(problem_to_dict(draw_problem(30, 800, "mixed", 1)))
    done = process.run([sys.executable, "-c", FIRST_CALL], timeout_s=60.0, stdin=text)
    if not done.is_ok:
        raise SystemExit(f"the first call failed: {done.stderr[-500:]}")
    import_s, first_s = map(float, done.stdout.split())
    return import_s, first_s


def print_rows(rows: Sequence[Row]) -> None:
    """Print the table."""
    table = Table(title="Time of one decision", title_justify="left")
    for heading in ("problems", "trainers", "nodes", "solver", "runs", "median ms", "max ms", ""):
        table.add_column(
            heading, justify="left" if heading in {"problems", "solver", ""} else "right"
        )
    for row in rows:
        table.add_row(
            row.family,
            str(row.trainers),
            str(row.nodes),
            row.solver,
            str(row.runs),
            f"{1000 * row.median_s:.3f}",
            f"{1000 * row.max_s:.3f}",
            row.note,
        )
    console().print(table)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs (some seconds)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results to FILE")
    options = parser.parse_args()
    rows = measure_all(runs=12 if options.quick else 50)
    rows += measure_reference()
    import_s, first_s = min(measure_first_call() for _ in range(3))
    print_rows(rows)
    targets = [
        Target(
            name=f"{row.trainers} trainers x {row.nodes} nodes, {row.family} curves",
            measured=row.median_s,
            limit=TARGETS_S[row.trainers, row.nodes],
            relation="<=",
            note=f"median of {row.runs}, best of {CALLS} calls each",
        )
        for row in rows
        if row.solver == "exact" and row.family in {"mixed", "equal"} and row.trainers > 5
    ]
    targets.append(
        Target(
            name="first call after import, 30 trainers x 800 nodes",
            measured=first_s,
            limit=FIRST_CALL_TARGET_S,
            relation="<=",
            note=f"best of 3; import takes {import_s:.2f} s",
        )
    )
    print_targets("Decision time", targets)
    if options.json:
        write_json(options.json, "decide", {"rows": [asdict(row) for row in rows]}, targets)
    return exit_code(targets)


if __name__ == "__main__":
    sys.exit(main())
