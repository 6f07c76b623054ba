#!/usr/bin/env python3
"""Is the plan of a study exact, what is that worth, and what does it cost to compute?

Drawn studies, profiles, clouds and deadlines (``_bench/planning.py``): the closed form against the
graph of tasks, the exact plan against all plans, then SHA studies of 8 to 64 trials (eta 2 or 3,
0 to 60 s to start an instance, deadlines 1.05 to 2.5 times the fastest) planned by everybody,
SHA(512, 4, 4096, 2), and Hyperband in 28 to 66 stages. Seconds are processor time. Prints targets
with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from itertools import product

import numpy as np
from _bench.benchmark import Benchmark, Measured, note
from _bench.planning import Compared, brute_force_error, compared, graph_error, large, many

from bftrainer.lab.papers.rubberband.placement import replaced

PLANNERS = ("static", "naive", "literal", "repaired")


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Measure all parts."""
    part = 10 if arguments.quick else 1
    note("closed form and brute force")
    worst = max(graph_error(case) for case in range(1000 // part))
    measured.at_most("closed form against graph, relative", worst, 1e-9, "", "worst plan")
    errors = [brute_force_error(case) for case in range(300 // part)]
    known = [error for error in errors if error is not None]
    measured.at_most("exact against brute force, relative", max(known), 1e-9, "", "worst case")
    measured.at_least("cases of brute force with a plan", len(known), 200 // part, "cases")
    note("planners beside each other")
    _compare([compared(case) for case in range(150 // part)], measured)
    note("SHA(512)")
    _large(measured, is_quick=arguments.quick)
    note("many stages")
    _many(measured, (64,) if arguments.quick else (64, 256, 1024))
    _place(measured, 400 // part)


def _compare(cases: list[Compared], measured: Measured) -> None:
    above = {
        name: np.array([case.of[name] / case.optimum - 1.0 for case in cases]) for name in PLANNERS
    }
    rows = []
    for name, all_of in above.items():
        finite = all_of[np.isfinite(all_of)]
        figures = (finite.mean(), np.quantile(finite, 0.9), finite.max())
        rows.append(
            [
                name,
                *(f"{x:.1%}" for x in figures),
                f"{np.mean(finite < 1e-3):.0%}",
                str(len(finite)),
            ]
        )
    heads = ["planner", "mean above exact", "p90", "worst", "optimal", "cases with a plan"]
    measured.table("Plans of drawn SHA studies", heads, rows)
    measured.results["compared"] = [asdict(case) for case in cases]
    saving = np.mean([1.0 - case.optimum / case.of["literal"] for case in cases])
    dearer = max(case.optimum / case.of[n] - 1.0 for case in cases for n in PLANNERS)
    measured.at_most("exact above any other planner", dearer, 1e-9, "", f"{len(cases)} cases")
    measured.at_least("mean saving over literal Alg. 2", float(saving), 0.10, "")
    measured.at_most("repaired above exact, mean", float(above["repaired"].mean()), 0.02, "")
    measured.at_most("repaired above exact, worst", float(above["repaired"].max()), 0.15, "")
    cpu_s = max(case.exact_cpu_s for case in cases)
    measured.at_most("exact plan of up to 64 trials", cpu_s, 1.0, note="slowest")


def _large(measured: Measured, *, is_quick: bool) -> None:
    efficiencies = (0.85,) if is_quick else (0.937, 0.85)
    spreads = (0.0,) if is_quick else (0.0, 0.2)
    cases = product((0.0, 1.0, 10.0, 100.0), (90, 120, 160), efficiencies, spreads)
    found = [large(*case) for case in cases]
    heads = ["start-up, s", "deadline, min", "efficiency", "spread", "cost", "gap", "CPU, s"]
    rows = [
        [
            *(f"{one.start_s:.0f}", str(one.deadline_min), f"{one.efficiency}", f"{one.spread}"),
            *(f"{one.cost:.2f}", f"{one.gap:.1%}", f"{one.exact_cpu_s:.2f}"),
            *(f"{one.repaired:+.1%}", f"{one.literal:+.1%}", f"{one.greedy_cpu_s:.2f}"),
        ]
        for one in found
    ]
    heads += ["repaired", "literal", "CPU, s"]
    measured.table("SHA(512, 4, 4096, 2)", heads, rows, left=0)
    measured.results["large"] = [asdict(one) for one in found]
    free = max(one.exact_cpu_s for one in found if one.start_s == 0.0)
    dear = max(one.exact_cpu_s for one in found)
    measured.at_most("SHA(512), free start-up", free, 1.0, note="CPU, slowest")
    measured.at_most("SHA(512), with start-up", dear, 2.0, note="CPU, slowest")
    measured.at_most("plan above bound", max(one.gap for one in found), 0.04, "")
    greedy_s = max(one.greedy_cpu_s for one in found)
    measured.at_most("SHA(512), repaired Alg. 2", greedy_s, 0.5, note="CPU, slowest")


def _many(measured: Measured, sizes: tuple[int, ...]) -> None:
    found = [many(*case) for case in product(sizes, (1.05, 1.3, 2.0))]
    rows = [
        [
            *(str(one.most), str(one.stages), f"{one.over_fastest}", f"{one.gap:.2%}"),
            *(f"{one.repaired:+.1%}", f"{one.cpu_s:.2f}"),
        ]
        for one in found
    ]
    heads = ["epochs", "stages", "deadline / fastest", "gap", "repaired", "CPU, s"]
    measured.table("Hyperband, eta 2", heads, rows, left=0)
    measured.results["many"] = [asdict(one) for one in found]
    measured.at_most("many stages, plan above bound", max(one.gap for one in found), 0.04, "")
    measured.at_least("many stages, repaired", min(one.repaired for one in found), 0.0, "")
    measured.at_most("many stages", max(one.cpu_s for one in found), 10.0, note="CPU, slowest")


def _place(measured: Measured, histories: int) -> None:
    placed = replaced(histories)
    measured.results["placed"] = asdict(placed)
    note = f"of {placed.rounds} placements"
    measured.at_most("wrong sizes", placed.wrong, 0, "trials", note)
    measured.at_most("oversubscribed", placed.oversubscribed, 0, "placements", note)
    measured.at_most("split although it fits", placed.split, 0, "trials", note)
    share = placed.moved / max(1, placed.unchanged)
    measured.at_most("unchanged trials moved", share, 0.05, "", f"of {placed.unchanged}")


BENCHMARK = Benchmark(
    name="plan",
    title="Plans of studies",
    about=__doc__,
    quick="a tenth of the cases, less than a minute",
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
