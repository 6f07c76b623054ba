#!/usr/bin/env python3
"""Whole nodes or leftovers: where do the GPUs lie that the jobs of a real log leave idle?

The jobs of Microsoft's Philly cluster run on a simulated Slurm whose jobs share nodes: 100 nodes of
8 GPUs, and 200 of 4, asked for 75, 90 and 100% of all GPU time. Slurm packs them, which is its
default, or takes the least loaded node first (CR_LLN). A GPU that no job has is idle: on a node
without a job, which can be lent as a whole, or beside jobs of others, as a leftover.

How the jobs are drawn: a week of the log, another one with each seed, is drawn together or apart
until it asks for the wanted share of all GPU-seconds, counted as if each job started when it is
submitted. Jobs of at most as many GPUs as a node has share nodes, with CPUs and memory in
proportion; larger ones take whole nodes. The log has no limits: they are drawn, 2 to 5 times the
run time. Two days before the week the simulation begins with the jobs that would run then. Nodes
are fragmented only after days, so that ``--quick`` shows no more than that all works. The log is
sought in BFTRAINER_DATA; without it, nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import fmean

from _bench.benchmark import Benchmark, Measured, note
from _bench.leftover import philly, runs
from _bench.leftover.philly import DAY_S, WeekDemand
from _bench.leftover.runs import WeekOutcome, WeekRun
from _bench.leftover.split import together

DATA_VARIABLE = "BFTRAINER_DATA"
HOUR_S = 3600.0
MACHINES = ((100, 8), (200, 4))  # nodes, GPUs of each
LOADS = (0.75, 0.90, 1.00)
SEEDS = 4
DAYS, WARM_DAYS = 7.0, 2.0
QUICK_MACHINES, QUICK_LOADS, QUICK_SEEDS = MACHINES[:1], (0.90,), 1
QUICK_DAYS, QUICK_WARM_DAYS = 0.5, 0.25
# What a calculation beside this project says of 90% load: leftover, of all idle GPUs, by the GPUs
# of a node.
CALCULATED_LOAD = 0.90
CALCULATED_SHARES = {8: 0.74, 4: 0.46}
PLACEMENTS = {False: "packed", True: "spread"}
Key = tuple[int, float, bool]  # GPUs of a node, load, is spread
Played = Mapping[Key, Sequence[WeekOutcome]]


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play the log on all machines, and add up what was idle."""
    log = Path(os.environ.get(DATA_VARIABLE) or os.devnull) / philly.PATH
    if not log.is_file():
        why = f"{DATA_VARIABLE} is not set, or has no {philly.PATH}"
        measured.results["skipped"] = why
        measured.tables.append(f"Nothing is measured: {why}.")
        return
    played: dict[Key, list[WeekOutcome]] = {}
    for task, outcome in runs.run(_tasks(arguments), log, arguments.processes):
        demand = task.demand
        note(
            f"{demand.n_nodes} x {demand.gpus_per_node} GPUs, load {demand.load:g}, "
            f"{PLACEMENTS[task.is_spread]}, seed {demand.seed}: {outcome.cpu_s:.0f} s"
        )
        key = (demand.gpus_per_node, demand.load, task.is_spread)
        played.setdefault(key, []).append(outcome)
        measured.results.setdefault("runs", []).append(
            {**asdict(demand), "is_spread": task.is_spread, **asdict(outcome)}
        )
    _tabulate(played, arguments, measured)
    if not arguments.quick:
        _judge(played, measured)


def _tasks(arguments: argparse.Namespace) -> list[WeekRun]:
    is_quick = arguments.quick
    machines = QUICK_MACHINES if is_quick else MACHINES
    seeds = arguments.seeds or (QUICK_SEEDS if is_quick else SEEDS)
    warm_days = QUICK_WARM_DAYS if is_quick else WARM_DAYS
    return [
        WeekRun(
            demand=WeekDemand(
                n_nodes=n_nodes,
                gpus_per_node=gpus_per_node,
                warm_s=warm_days * DAY_S,
                counted_s=_days(arguments) * DAY_S,
                load=load,
                seed=seed,
            ),
            is_spread=is_spread,
        )
        for (n_nodes, gpus_per_node), load, seed, is_spread in product(
            machines, QUICK_LOADS if is_quick else LOADS, range(1, seeds + 1), PLACEMENTS
        )
    ]


def _days(arguments: argparse.Namespace) -> float:
    default: float = QUICK_DAYS if arguments.quick else DAYS
    return float(arguments.days or default)


def _tabulate(played: Played, arguments: argparse.Namespace, measured: Measured) -> None:
    days = _days(arguments)
    for n_nodes, gpus_per_node in MACHINES:
        rows = [
            (f"{load:.0%}", PLACEMENTS[is_spread], *_cells(played[gpus, load, is_spread]))
            for gpus, load, is_spread in sorted(played)
            if gpus == gpus_per_node
        ]
        title = f"{n_nodes} nodes of {gpus_per_node} GPUs: GPU-hours of {days:g} days, by mean"
        headings = (
            *("asked", "placed", "in use", "idle", "on idle nodes", "leftover", "% of idle"),
            *("by seed", "mean wait, min", "queue at the end"),
        )
        if rows:
            measured.table(title, headings, rows, left=2)


def _cells(outcomes: Sequence[WeekOutcome]) -> tuple[str, ...]:
    split = together(outcome.split for outcome in outcomes)
    shares = sorted(outcome.split.leftover_share for outcome in outcomes)
    hours = HOUR_S * len(outcomes)
    return (
        f"{split.utilisation:.1%}",
        f"{split.idle_gpu_s / hours:,.0f}",
        f"{split.whole_gpu_s / hours:,.0f}",
        f"{split.leftover_gpu_s / hours:,.0f}",
        f"{split.leftover_share:.0%}",
        f"{shares[0]:.0%} to {shares[-1]:.0%}",
        f"{fmean(outcome.mean_wait_s for outcome in outcomes) / philly.MINUTE_S:,.1f}",
        f"{fmean(outcome.n_waiting for outcome in outcomes):,.0f}",
    )


def _judge(played: Played, measured: Measured) -> None:
    """Hold the shares of leftovers against those that were calculated."""
    for gpus_per_node, share in CALCULATED_SHARES.items():
        outcomes = played.get((gpus_per_node, CALCULATED_LOAD, False))
        if outcomes:
            split = together(outcome.split for outcome in outcomes)
            measured.at_least(
                f"leftover, of idle GPUs, {gpus_per_node} a node, {CALCULATED_LOAD:.0%} load",
                100.0 * split.leftover_share,
                100.0 * share,
                "%",
                f"packed, {len(outcomes)} seeds; as was calculated",
            )


BENCHMARK = Benchmark(
    name="leftover",
    title="Leftover GPUs",
    about=__doc__,
    quick="half a day of one week, 100 nodes of 8 GPUs, 90%",
    measure=measure,
    options={
        "--seeds": {"type": int, "help": f"stretches of the log (default {SEEDS}, quick 1)"},
        "--days": {"type": float, "help": f"counted (default {DAYS:g}, quick {QUICK_DAYS:g})"},
        "--processes": {"type": int, "default": os.cpu_count() or 1, "help": "runs side by side"},
    },
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
