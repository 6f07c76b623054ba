"""What does bftrainer cost the batch system's controller?

On a real 64-node Slurm, real agents on every node, storms of submissions: 100 at once,
500 jobs in the queue, an array of 1,000. The arms take turns, each on a fresh cluster, and
so does their order: with bftrainer, without, and with ordinary jobs on the nodes that it
would have, which Slurm may preempt. slurmctld itself says (``sdiag``) how many requests it
served and how long its schedulers' cycles took. What is to be reached is a ratio, with over
without; with over jobs, which is printed beside it, leaves out what slurmctld charges for any
job that has used a node. With ``--idle 8`` ordinary jobs hold the other nodes in all arms.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import permutations
from statistics import median
from typing import Literal

from _bench.awake import processors_awake
from _bench.benchmark import Benchmark, Measured, note
from _bench.controller import ARMS, Arm, Sample, Scale, Site
from _bench.sdiag import Cycles
from _bench.stats import ratio_interval
from _bench.zero_harm.arm import RESERVE

FULL = Scale(n_nodes=64, idle=64, submissions=100, queue=500, array=1000, window_s=30.0)
QUICK = Scale(n_nodes=16, idle=16, submissions=20, queue=40, array=60, window_s=12.0)
MAX_RATIO = 1.05
Scheduler = Literal["main", "backfill"]
SCHEDULERS: tuple[Scheduler, ...] = ("main", "backfill")


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Measure every storm in every arm."""
    scale = _scale(arguments)
    with processors_awake():
        samples = _measure(scale, arguments.repeats or (1 if arguments.quick else 6))
    measured.results |= {"scale": asdict(scale), "samples": [asdict(s) for s in samples]}
    _judge(samples, measured)
    _tabulate(samples, measured)


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.idle is not None and not RESERVE < arguments.idle <= _scale(arguments).n_nodes:
        parser.error("--idle: more than the reserve, and at most all nodes")


def _scale(arguments: argparse.Namespace) -> Scale:
    scale = QUICK if arguments.quick else FULL
    return scale if arguments.idle is None else replace(scale, idle=arguments.idle)


def _measure(scale: Scale, repeats: int) -> list[Sample]:
    samples: list[Sample] = []
    orders = list(permutations(ARMS))
    for repeat in range(repeats):
        for arm in orders[repeat % len(orders)]:
            with Site(scale, arm) as site:
                for storm in site.storms:
                    samples.append(site.sample(storm, repeat))
                    note(f"repeat {repeat + 1} of {repeats}, {arm}: {storm}")
    return samples


def _of(samples: Sequence[Sample], storm: str, arm: Arm) -> list[Sample]:
    return [s for s in samples if (s.storm, s.arm) == (storm, arm)]


def _cycle_us(sample: Sample, scheduler: Scheduler) -> float:
    cycles = sample.load.main if scheduler == "main" else sample.load.backfill
    return cycles.mean_us


def _judge(samples: Sequence[Sample], measured: Measured) -> None:
    for storm in dict.fromkeys(s.storm for s in samples):
        for scheduler in SCHEDULERS:
            cycles = {arm: _cycles(samples, storm, arm, scheduler) for arm in ARMS}
            if not cycles["with"] or len({len(blocks) for blocks in cycles.values()}) > 1:
                continue  # no cycle of this kind within the window: nothing to compare
            ratio, low, high = ratio_interval(cycles["with"], cycles["without"])
            beside = ratio_interval(cycles["with"], cycles["jobs"])
            about = f"{len(cycles['with'])} pairs, 95%: {low:.2f} to {high:.2f}; over jobs "
            about += "{:.2f}, {:.2f} to {:.2f}".format(*beside)
            measured.at_most(f"{storm}: {scheduler}", ratio, MAX_RATIO, "", about)


def _cycles(
    samples: Sequence[Sample], storm: str, arm: Arm, scheduler: Scheduler
) -> list[list[float]]:
    """Return the mean cycle of each repeat that had one, µs."""
    return [[us] for s in _of(samples, storm, arm) if (us := _cycle_us(s, scheduler))]


def _tabulate(samples: Sequence[Sample], measured: Measured) -> None:
    title = "slurmctld, medians over repeats; cycles of main and backfill scheduler, ms"
    headings = ("storm", "arm", "requests", "CPU s", "main", "mean", "max", "sum",
                "backfill", "mean", "max", "jobs", "ms/job")  # fmt: skip
    rows = []
    for storm in dict.fromkeys(s.storm for s in samples):
        for arm in ARMS:
            found = _of(samples, storm, arm)
            columns: list[list[float]] = [
                [sum(s.load.rpcs.values()) for s in found],
                [s.cpu_s for s in found],
                [s.load.main.count for s in found],
                [s.load.main.mean_us / 1000 for s in found],
                [s.load.main.max_us / 1000 for s in found],
                [s.load.main.count * s.load.main.mean_us / 1000 for s in found],
                [s.load.backfill.count for s in found],
                [s.load.backfill.mean_us / 1000 for s in found],
                [s.load.backfill.max_us / 1000 for s in found],
                [s.load.backfill.mean_jobs for s in found],
                [_per_job_us(s.load.backfill) / 1000 for s in found],
            ]
            rows.append((storm, arm, *(f"{median(column):.3g}" for column in columns)))
    measured.table(title, headings, rows, left=2)


def _per_job_us(cycles: Cycles) -> float:
    """Return what looking at one job took: how full the queue is when a pass begins is chance."""
    return cycles.mean_us / cycles.mean_jobs if cycles.mean_jobs else 0.0


BENCHMARK = Benchmark(
    name="controller",
    title="A scheduling cycle, with over without",
    about=__doc__,
    quick="16 nodes, small storms, one repeat",
    options={
        "--repeats": {"type": int, "help": "of every storm and arm (default 6, quick 1)"},
        "--idle": {"type": int, "help": "nodes that other jobs leave (default: all)"},
    },
    check=_check,
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
