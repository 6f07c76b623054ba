#!/usr/bin/env python3
"""How many pilots are requested until one's node trains, when starting takes time.

Ten trainers come one after another to a site of eight nodes, train for a few minutes and end. The
daemon's books, its machines and decisions are the real ones, on a clock of their own
(``tests/support/fleet.py``); workers take 5 to 120 s to start, polls come every 1 to 30 s. Figure:
pilots requested per pilot whose node made a first step; 1 is the least. Once without ordinary jobs,
once with ordinary jobs that take nodes for a while.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' model of a site

from _bench.benchmark import Benchmark, Measured, note

from tests.support.fleet import Fleet

N_NODES, N_TRAINERS = 8, 10
STARTS_S, POLLS_S = (5.0, 30.0, 120.0), (1.0, 15.0, 30.0)
APART_S, STEPS = 60.0, 150  # between submissions; of a trainer, one a second
LAST_S = 1500.0
BUSY_EVERY_S, BUSY_S = 240.0, 90.0  # a node is taken so often, for so long, on average


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play every cell."""
    logging.disable(logging.CRITICAL)  # of trainers that ordinary jobs disturb
    seeds = range(1, 2 if arguments.quick else 6)
    rows, figures = [], dict[str, list[float]]()
    for start_s in STARTS_S:
        for poll_s in POLLS_S:
            cell = {
                name: [_per_first_step(start_s, poll_s, seed, has_jobs=has_jobs) for seed in seeds]
                for name, has_jobs in ARMS.items()
            }
            rows.append(
                [f"{start_s:g} s", f"{poll_s:g} s", *(f"{fmean(v):.2f}" for v in cell.values())]
            )
            note(" ".join(rows[-1]))
            for name, values in cell.items():
                figures.setdefault(name, []).extend(values)
    title = f"Pilots requested per node that made a first step (mean of {len(seeds)})"
    measured.table(title, ["start", "poll", *ARMS], rows, left=2)
    measured.results["per_first_step"] = figures
    measured.at_most("without ordinary jobs", fmean(figures["alone"]), 1.1, "pilots")


def _per_first_step(start_s: float, poll_s: float, seed: int, *, has_jobs: bool) -> float:
    chance = random.Random(seed)  # noqa: S311 - a replay, reproducible by its seed
    fleet = Fleet(N_NODES, poll_s=poll_s, hello_s=3.0)
    nodes, busy = sorted(fleet.cluster.types), dict[str, float]()
    at_s = 0.0
    while at_s < LAST_S:
        if at_s % APART_S == 0 and len(fleet.asked) < N_TRAINERS:
            most = chance.choice([1, 1, 2, 4])
            fleet.submit(n_min=1, n_max=most, start_s=start_s, steps=STEPS)
        for node in nodes if has_jobs else ():
            if node not in busy and chance.random() < 1.0 / BUSY_EVERY_S:
                fleet.take(node)
                busy[node] = at_s + chance.expovariate(1.0 / BUSY_S)
            elif busy.get(node, at_s + 1.0) <= at_s:
                fleet.give(node)
                del busy[node]
        fleet.pass_time(1.0)
        at_s += 1.0
    return fleet.requested.total() / max(1, len({pilot for pilot, _ in fleet.trained_on}))


ARMS = {"alone": False, "with jobs": True}  # whether there are ordinary jobs

BENCHMARK = Benchmark(
    name="starts",
    title="Starts",
    about=__doc__,
    quick="one seed instead of five",
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
