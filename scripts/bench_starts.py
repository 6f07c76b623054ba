#!/usr/bin/env python3
"""What is left of idle nodes, and how many pilots it takes, when starting takes time.

From the request of a pilot to the first step on its node: 1 to 300 s; polls every 1 to 60 s, each
with a decision; decisions are the daemon's. *Replay*: the generated sample trace, whose nodes come
and go, with the usual workload; half of a start is the pilot's, half the worker's. *Site*: ten
trainers come one after another to the simulated Slurm of ``bench_site``, train for a few minutes
and end, once without ordinary jobs and once with them; the start is the worker's, and what the
pilot takes comes on top. Figures: U (A_e / A_s) of the replay, and pilots requested per pilot whose
node made a first step; 1 is the least.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from _bench.benchmark import Benchmark, Measured, note

from bftrainer.batch.traces import SAMPLE
from bftrainer.batch.traces.read import read_trace
from bftrainer.lab.simulator.physical import MEASURED, constant
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.site.sidecar import play as play_site
from bftrainer.lab.site.workload import Cell
from bftrainer.lab.workloads import Submission, by_name
from milp.problem import Curve

STARTS_S, POLLS_S = (1.0, 30.0, 300.0), (1.0, 15.0, 60.0)
N_NODES, N_TRAINERS = 16, 10
APART_S, SAMPLES = 60.0, 300.0  # between submissions; of a trainer, one a second and node
SITE = Cell(
    bf_interval_s=30.0, bf_duration_s=0.5, n_nodes=N_NODES, hours=2.0, warm_s=3600.0, load=0.8
)


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play every pair of a start and an interval of polls."""
    seeds = range(1, 2 if arguments.quick else 4)
    hours = 1.0 if arguments.quick else 6.0
    rows = []
    for start_s in STARTS_S:
        for poll_s in POLLS_S:
            utilization, replayed = _replayed(start_s, poll_s, hours)
            alone, beside = (
                fmean(_on_site(start_s, poll_s, seed, has_jobs=has_jobs) for seed in seeds)
                for has_jobs in (False, True)
            )
            counts = (f"{count:.2f}" for count in (replayed, alone, beside))
            rows.append([f"{start_s:g} s", f"{poll_s:g} s", f"{100 * utilization:.1f}%", *counts])
            note(" ".join(rows[-1]))
            measured.at_most(
                f"start {start_s:g} s, poll {poll_s:g} s: without ordinary jobs",
                alone,
                1.1,
                "pilots",
                f"with them {beside:.2f}; in the replay {replayed:.2f}, U {100 * utilization:.1f}%",
            )
    title = (
        f"Pilots requested per pilot whose node made a first step ({len(seeds)} seeds, {hours:g} h)"
    )
    heads = ["start", "poll", "U, replay", "replay", "site, no jobs", "site, jobs"]
    measured.table(title, heads, rows, left=2)


def _replayed(start_s: float, poll_s: float, hours: float) -> tuple[float, float]:
    """Return U and pilots per first step."""
    half = constant(start_s / 2.0)
    costs = replace(MEASURED, claim=half, warm_up=half)
    trace = read_trace(SAMPLE).restrict(hours=hours)
    choices = Choices(costs=costs, poll_s=poll_s)
    _, found = play(trace, by_name("hpo-shufflenet", seed=choices.seed), choices)
    return found.utilization, found.pilots_per_first_step or 0.0


def _on_site(start_s: float, poll_s: float, seed: int, *, has_jobs: bool) -> float:
    stage = replace(SITE, start_s=start_s, poll_s=poll_s).stage(seed)
    if not has_jobs:
        stage = replace(stage, jobs=(), maintenance=())
    found = play_site(stage, tuple(_trainers(seed)), "milp", N_TRAINERS)
    return found.harvest.pilots / max(1, found.harvest.pilots_trained)


def _trainers(seed: int) -> Iterator[Submission]:
    chance = random.Random(seed)  # noqa: S311 - a workload, reproducible by its seed
    for k in range(N_TRAINERS):
        yield Submission(
            name=f"t{k}",
            submit_s=k * APART_S,
            n_min=1,
            n_max=chance.choice([1, 1, 2, 4]),
            samples=SAMPLES,
            curve=Curve(sizes=(1, 4), samples_per_s=(1.0, 4.0)),
            rescale_up_s=0.3,
            rescale_down_s=0.1,
        )


BENCHMARK = Benchmark(
    name="starts",
    title="Starts",
    about=__doc__,
    quick="one seed instead of three, one hour instead of six",
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
