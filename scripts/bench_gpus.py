#!/usr/bin/env python3
"""GPU by GPU: what do idle GPUs of a shared cluster give, and what do ordinary jobs notice?

An hour in ten minutes: 6 real Slurm nodes of 4 GPUs (files), jobs of 1 to 4 GPUs or two whole
nodes, arrays, jobs that wait for others, limits 2 to 5 times too long. The same jobs run at the
same instants on several clusters at once: without bftrainer, without it again (what chance does),
with one GPU per pilot (today's slots), and with whole nodes. What is counted comes from the jobs
and from slurmctld's log, not from bftrainer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean

from _bench.benchmark import Benchmark, Measured, note
from _bench.choosing import names_in, refuse_unknown
from _bench.gpus import arms, measures
from _bench.gpus.measures import ArmRun

MINUTE_S = 60.0
HOUR_S = 3600.0
SPAN_S = 600.0
QUICK_SPAN_S = 60.0
SEEDS = 3
MOST_BY_CHANCE_S = 1.0  # of the mean wait: between the two runs without bftrainer


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play all seeds, then judge each arm beside the run without bftrainer."""
    settings = arms.Settings(
        span_s=arguments.span or (QUICK_SPAN_S if arguments.quick else SPAN_S),
        load=arguments.load,
        say=note,
    )
    chosen = _chosen(arguments.arms)
    n_seeds = arguments.seeds or (1 if arguments.quick else SEEDS)
    by_seed: list[dict[str, ArmRun]] = []
    for seed in range(arguments.seed, arguments.seed + n_seeds):
        by_seed.append({run.arm: run for run in arms.play(settings, chosen, seed)})
        _tabulate_seed(seed, by_seed[-1], measured)
    _tabulate_harm(by_seed, measured)
    measured.results["runs"] = [asdict(run) for runs in by_seed for run in runs.values()]


def _chosen(names: str) -> tuple[arms.Arm, ...]:
    wanted = names_in(names)
    by_name = {arm.name: arm for arm in arms.ARMS}
    refuse_unknown(wanted, tuple(by_name))
    needed = [name for name in by_name if name in wanted or name in ("without", "again")]
    return tuple(by_name[name] for name in needed)


def _tabulate_seed(seed: int, runs: dict[str, ArmRun], measured: Measured) -> None:
    """Show what was lent, and how it was given back."""
    controls = [runs["without"], runs["again"]]
    lent, harm = [], []
    for run in runs.values():
        idle, hand_overs = measures.idle_of(run), measures.hand_overs_of(run)
        rows = (idle.whole_gpu_s, idle.leftover_gpu_s, idle.lent_whole_gpu_s)
        per_gpu_hour = "-"
        if idle.lent_gpu_s:
            per_gpu_hour = f"{run.n_submitted * HOUR_S / idle.lent_gpu_s:.0f}"
        lent.append(
            (
                run.arm,
                *(f"{gpu_s:,.0f}" for gpu_s in (*rows, idle.lent_leftover_gpu_s)),
                f"{100.0 * idle.lent_share:.1f}%",
                *(
                    str(count)
                    for count in (hand_overs.given_back, hand_overs.preempted, hand_overs.in_vain)
                ),
                per_gpu_hour,
            )
        )
        more_requests = run.n_requests - fmean(control.n_requests for control in controls)
        lost = reordered = "-"
        if run.arm != "without":  # all are held against this one, the null pair too
            lost = str(measures.lost_cycles(run, runs["without"]))
            reordered = f"{100.0 * measures.reordered_share(run, runs['without']):.1f}%"
        harm.append(
            (
                run.arm,
                f"{fmean(measures.waits_of(run).values()):.1f}",
                lost,
                reordered,
                f"{more_requests / (run.span_s / MINUTE_S):+.0f}",
            )
        )
    headings = (
        *("arm", "idle on free nodes", "on used ones", "lent on free", "on used", "of idle"),
        *("given back", "preempted", "in vain", "pilots per GPU-h"),
    )
    title = f"Seed {seed}: GPU-seconds, and pilots that left"
    measured.table(title, headings, lent, left=1)
    of_jobs = ("arm", "mean wait, s", "lost cycles", "other order", "requests a minute")
    n_jobs = len(runs["without"].jobs)
    measured.table(f"Seed {seed}: what {n_jobs} ordinary jobs notice", of_jobs, harm, left=1)


def _tabulate_harm(by_seed: Sequence[dict[str, ArmRun]], measured: Measured) -> None:
    rows = []
    for arm in by_seed[0]:
        if arm == "without":
            continue
        added = measures.added_wait([(runs["without"], runs[arm]) for runs in by_seed])
        rows.append((arm, f"{added.mean:+.2f}", f"{added.low:+.2f} to {added.high:+.2f}"))
        measured.results.setdefault("added_wait_s", {})[arm] = asdict(added)
        if arm == "again":
            measured.at_most(
                "two runs without bftrainer, mean wait apart",
                abs(added.mean),
                MOST_BY_CHANCE_S,
                note=f"95% {added.low:+.2f} to {added.high:+.2f}",
            )
    title = f"Added to the mean wait, s, {len(by_seed)} seeds (again: by chance alone)"
    measured.table(title, ("arm", "mean", "95% interval"), rows, left=1)


BENCHMARK = Benchmark(
    name="gpus",
    title="GPU by GPU",
    about=__doc__,
    quick="one minute, one seed",
    options={
        "--arms": {
            "default": ",".join(arm.name for arm in arms.ARMS),
            "help": "of: %(default)s; the runs without bftrainer are always made",
        },
        "--seeds": {"type": int, "help": f"(default {SEEDS}, quick 1)"},
        "--seed": {"type": int, "default": 1, "help": "the first"},
        "--span": {"type": float, "help": "of submissions, s (default 600, quick 60)"},
        "--load": {"type": float, "default": 0.7, "help": "GPU-seconds asked for, of all"},
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
