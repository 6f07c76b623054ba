#!/usr/bin/env python3
"""Idle GPUs lent one by one: what do jobs notice, and how much more is lent than by whole nodes?

The jobs of Microsoft's Philly cluster run on a simulated Slurm whose jobs share nodes: 100 nodes of
8 GPUs, asked for 75, 90 and 100% of all GPU time (drawn as in ``bench_leftover``). The daemon's own
decision runs beside it and lends whole idle nodes, or GPUs one by one, to a trainer that takes any
number of them.

How the harm is measured: block by block of 20 minutes. Each block begins with copies of the machine
beside the daemon in which it is not, and all run on to the end of the block; the difference of the
waits is what the daemon adds. In one of the copies users submit up to 0.2 s earlier or later: what
it differs by from the other is chance (the null pair). Intervals are of 95%, by resampled blocks.

A lost cycle is a job that fitted, had to wait for pilots to be preempted, and started a cycle of
backfill later. A pilot is given back in vain if it leaves for a job and no job that starts there
within a cycle needs its GPU. The log is sought in BFTRAINER_DATA; without it, nothing is measured.
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
from _bench.lent_gpus import philly, runs
from _bench.lent_gpus.counts import added_percent, added_s
from _bench.lent_gpus.philly import WeekDemand
from _bench.lent_gpus.runs import Arm, LentOutcome, LentRun
from _bench.lent_gpus.split import together

DATA_VARIABLE = "BFTRAINER_DATA"
N_NODES, GPUS_PER_NODE = 100, 8
LOADS = (0.75, 0.90, 1.00)
HOURS, WARM_HOURS, SEEDS = 24.0, 24.0, 1
QUICK_LOADS, QUICK_HOURS, QUICK_WARM_HOURS = (0.90,), 1.0, 6.0
HOUR_S = 3600.0
MOST_ADDED_PERCENT = 0.5
MOST_LOST = 1.0  # per 1,000 starts
Key = tuple[float, Arm]
Played = Mapping[Key, Sequence[LentOutcome]]
BENCHMARK = Benchmark(
    name="lent_gpus",
    title="Lent GPUs",
    about=__doc__,
    quick="one hour at 90%, after six",
    options={
        "--loads": {
            "type": float,
            "nargs": "+",
            "metavar": "X",
            "help": "asked of all GPU time (default 0.75 0.9 1, quick 0.9)",
        },
        "--hours": {"type": float, "help": f"counted (default {HOURS:g}, quick {QUICK_HOURS:g})"},
        "--seeds": {"type": int, "default": SEEDS, "help": "stretches of the log"},
        "--processes": {"type": int, "default": os.cpu_count() or 1, "help": "runs side by side"},
    },
)


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play the log in all arms, and hold them beside each other."""
    log = Path(os.environ.get(DATA_VARIABLE) or os.devnull) / philly.PATH
    if not log.is_file():
        why = f"{DATA_VARIABLE} is not set, or has no {philly.PATH}"
        measured.results["skipped"] = why
        measured.tables.append(f"Nothing is measured: {why}.")
        return
    played: dict[Key, list[LentOutcome]] = {}
    for task, outcome in runs.run(_tasks(arguments), log, arguments.processes):
        demand = task.demand
        note(f"load {demand.load:g}, {task.arm}, seed {demand.seed}: {outcome.cpu_s:.0f} s")
        played.setdefault((demand.load, task.arm), []).append(outcome)
        measured.results.setdefault("runs", []).append(
            {**asdict(demand), "arm": task.arm, **asdict(outcome)}
        )
    _tabulate(played, measured)
    if not arguments.quick:
        judge(played, measured)


def _tasks(arguments: argparse.Namespace) -> list[LentRun]:
    is_quick = arguments.quick
    loads = arguments.loads or (QUICK_LOADS if is_quick else LOADS)
    hours = arguments.hours or (QUICK_HOURS if is_quick else HOURS)
    warm_s = (QUICK_WARM_HOURS if is_quick else WARM_HOURS) * HOUR_S
    # The daemon settles for the length of a block before the span that is counted.
    return [
        LentRun(
            demand=WeekDemand(
                n_nodes=N_NODES,
                gpus_per_node=GPUS_PER_NODE,
                warm_s=warm_s,
                counted_s=hours * HOUR_S + runs.BLOCK_S,
                load=load,
                seed=seed,
            ),
            arm=arm,
        )
        for load, seed, arm in product(loads, range(1, arguments.seeds + 1), reversed(Arm))
    ]


def _tabulate(played: Played, measured: Measured) -> None:
    harm: list[tuple[str, ...]] = []
    harvest: list[tuple[str, ...]] = []
    for load, arm in sorted(played, key=lambda key: (key[0], list(Arm).index(key[1]))):
        outcomes = played[load, arm]
        harm.append((f"{load:.0%}", arm, *_harm_cells(outcomes)))
        if arm is not Arm.WITHOUT:
            harvest.append((f"{load:.0%}", arm, *_harvest_cells(outcomes)))
    measured.table(
        f"{N_NODES} nodes of {GPUS_PER_NODE} GPUs: what ordinary jobs notice",
        ("load", "daemon", "jobs", "mean wait, s", "added, s", "added, %", "by chance, %",
         "lost /1,000 starts"),
        harm,
        left=2,
    )  # fmt: skip
    measured.table(
        "What is lent",
        ("load", "daemon", "idle GPU-h", "leftover", "lent", "given back", "preempted", "in vain",
         "not needed", "pilots", "ms/decision"),
        harvest,
        left=2,
    )  # fmt: skip


def _harm_cells(outcomes: Sequence[LentOutcome]) -> tuple[str, ...]:
    blocks = [block for outcome in outcomes for block in outcome.blocks]
    cells = (
        f"{sum(outcome.n_jobs for outcome in outcomes):,}",
        f"{fmean(outcome.mean_wait_s for outcome in outcomes):,.0f}",
    )
    if not blocks:
        return (*cells, "-", "-", "-", f"{lost_per_1000(outcomes):.2f}")
    added_share, by_chance = added_percent(blocks), added_percent(blocks, is_null=True)
    return (
        *cells,
        f"{added_s(blocks):+.2f}",
        f"{added_share.mean:+.2f} ({added_share.low:+.2f} to {added_share.high:+.2f})",
        f"{by_chance.mean:+.2f} ({by_chance.low:+.2f} to {by_chance.high:+.2f})",
        f"{lost_per_1000(outcomes):.2f}",
    )


def _harvest_cells(outcomes: Sequence[LentOutcome]) -> tuple[str, ...]:
    split = together(outcome.split for outcome in outcomes)
    n_decisions = max(1, sum(outcome.n_decisions for outcome in outcomes))
    return (
        f"{split.idle_gpu_s / HOUR_S:,.0f}",
        f"{split.leftover_share:.0%}",
        f"{lent_share(outcomes):.1%}",
        f"{sum(outcome.left.given_back for outcome in outcomes):,}",
        f"{sum(outcome.left.preempted for outcome in outcomes):,}",
        f"{sum(outcome.left.in_vain for outcome in outcomes):,}",
        f"{sum(outcome.n_not_needed for outcome in outcomes):,}",
        f"{sum(outcome.n_pilots for outcome in outcomes):,}",
        f"{1000.0 * sum(outcome.decide_s for outcome in outcomes) / n_decisions:.1f}",
    )


def lent_share(outcomes: Sequence[LentOutcome]) -> float:
    """Return the idle GPU time that pilots held, of all that there was."""
    idle_gpu_s = together(outcome.split for outcome in outcomes).idle_gpu_s
    return sum(outcome.held_gpu_s for outcome in outcomes) / max(1.0, idle_gpu_s)


def lost_per_1000(outcomes: Sequence[LentOutcome]) -> float:
    """Return the lost cycles per 1,000 starts of ordinary jobs."""
    n_starts = sum(outcome.n_starts for outcome in outcomes)
    return 1000.0 * sum(outcome.n_lost for outcome in outcomes) / max(1, n_starts)


def judge(played: Played, measured: Measured) -> None:
    """Hold the lent parts against what was promised."""
    for load, arm in sorted(played):
        outcomes = played[load, arm]
        if arm is Arm.NODES:
            _judge_added(f"{load:.0%} load, whole nodes", outcomes, measured)
        if arm is not Arm.PARTS:
            continue
        _judge_added(f"{load:.0%} load", outcomes, measured)
        measured.at_most(
            f"lost backfill cycles, {load:.0%} load",
            lost_per_1000(outcomes),
            MOST_LOST,
            "per 1,000",
            f"of {sum(outcome.n_starts for outcome in outcomes):,} starts",
        )
        if whole := played.get((load, Arm.NODES)):
            measured.at_least(
                f"idle GPU time lent, {load:.0%} load",
                100.0 * lent_share(outcomes),
                100.0 * lent_share(whole),
                "%",
                "as much as by whole nodes",
            )


def _judge_added(case: str, outcomes: Sequence[LentOutcome], measured: Measured) -> None:
    blocks = [block for outcome in outcomes for block in outcome.blocks]
    added, by_chance = added_percent(blocks), added_percent(blocks, is_null=True)
    measured.at_most(
        f"added wait of ordinary jobs, {case}",
        added.mean,
        MOST_ADDED_PERCENT,
        "%",
        f"by chance {by_chance.low:+.2f} to {by_chance.high:+.2f}%",
        interval=(added.low, added.high),
    )


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
