#!/usr/bin/env python3
"""How good decisions under caps that cross are, and how long they take.

Problems of 20 x 100 to 100 x 1,000 trainers and nodes with irregular curves, caps of users and of
accounts, and one class of nodes or several (``_bench/capped.py``). The gap is what the solver says
a better answer could be worth more, of the answer's worth. Time is of the processor, whole
decision. With ``--reference S`` HiGHS alone looks for the optimum of each problem, S seconds at
most, in the model of sizes without what ``milp.decomposition`` rules out: an answer and its gap
must not be beaten. Prints targets with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

from _bench.benchmark import Benchmark, Measured, note
from _bench.capped import draw_capped
from _bench.capped_reference import best_known
from _bench.machine import versions

from milp.check import check
from milp.solve import solve

PROBLEMS, QUICK_PROBLEMS, FIRST_SEED = 60, 12, 1000
GAP, TIME_S = 0.005, 1.0
SHARE: Final = 0.95  # of the problems within both
ROUNDING: Final = 1e-7  # relative


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One problem."""

    seed: int
    trainers: int
    nodes: int
    classes: int
    solver: str
    objective: float
    gap: float  # of the objective
    processor_s: float
    reference: float | None  # best that HiGHS alone found


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Solve all problems."""
    n_problems = arguments.problems or (QUICK_PROBLEMS if arguments.quick else PROBLEMS)
    rows: list[Row] = []
    for seed in range(arguments.first, arguments.first + n_problems):
        row = _solved(seed, arguments.reference)
        rows.append(row)
        note(f"{seed}: {row.trainers} x {row.nodes} {row.solver} gap {row.gap:.3%}")
    measured.results |= {"versions": versions(), "rows": [asdict(row) for row in rows]}
    both = [row for row in rows if row.gap <= GAP and row.processor_s <= TIME_S]
    measured.at_least(
        f"within {GAP:.1%} and {TIME_S:g} s",
        round(100.0 * len(both) / len(rows), 1),
        100.0 * SHARE,
        "%",
        f"{len(both)} of {len(rows)}; {sum(row.gap == 0 for row in rows)} proven",
    )
    measured.at_most("largest gap", round(100.0 * max(row.gap for row in rows), 3), 2.0, "%")
    measured.at_most("longest", round(max(row.processor_s for row in rows), 2), 2.0)
    if arguments.reference:
        beaten = [
            row.seed
            for row in rows
            if row.reference is not None
            and row.reference > row.objective * (1.0 + row.gap) * (1.0 + ROUNDING)
        ]
        measured.at_most("better than the gap allows", len(beaten), 0, "problems", str(beaten))
    measured.table(
        "Crossing caps",
        ["trainers x nodes", "problems", "proven", "largest gap", "median s", "most s"],
        [_line(size, rows) for size in sorted({(row.trainers, row.nodes) for row in rows})],
    )


def _solved(seed: int, reference_s: float | None) -> Row:
    problem = draw_capped(seed)
    began_s = time.process_time()
    answer = solve(problem)
    took_s = time.process_time() - began_s
    check(problem, answer)
    return Row(
        seed=seed,
        trainers=len(problem.trainers),
        nodes=len(problem.nodes),
        classes=len({node.eligibility for node in problem.nodes}),
        solver=answer.solver,
        objective=answer.objective,
        gap=answer.gap / abs(answer.objective or 1.0),
        processor_s=took_s,
        reference=best_known(problem, reference_s) if reference_s else None,
    )


def _line(size: tuple[int, int], rows: list[Row]) -> list[str]:
    own = [row for row in rows if (row.trainers, row.nodes) == size]
    times_s = sorted([row.processor_s for row in own])
    return [
        f"{size[0]} x {size[1]}",
        str(len(own)),
        str(sum([row.gap == 0 for row in own])),
        f"{max(row.gap for row in own):.3%}",
        f"{times_s[len(own) // 2]:.2f}",
        f"{times_s[-1]:.2f}",
    ]


BENCHMARK = Benchmark(
    name="caps",
    title="Caps that cross",
    about=__doc__,
    quick=f"{QUICK_PROBLEMS} problems instead of {PROBLEMS}",
    measure=measure,
    options={
        "--problems": {"type": int, "help": "how many"},
        "--first": {"type": int, "default": FIRST_SEED, "help": "the first seed"},
        "--reference": {"type": float, "metavar": "S", "help": "seconds of HiGHS per problem"},
    },
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
