#!/usr/bin/env python3
"""What do shorter gaps bring, and what do they cost ordinary jobs?

Plays machines of ``_bench/gaps/machines.py`` on the simulated site (``bftrainer.lab.site``), beside
bftrainer with several values of ``min_gap_s`` and ``gap_margin_s``; the jobs of a seed are the same
for all. Harm is what ordinary jobs wait longer than in a copy of the machine without bftrainer,
block by block of 20 min: in node-seconds (a job's wait once for each of its nodes) for each hour of
the machine, and in seconds for each job. Harvest is the share of the nodes' idle time in which
workers had started, beside what an oracle would hold under Slurm's rules and the reserve; and why
nodes were not held. Compared with the defaults, block by block, with a 95% interval.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from _bench.benchmark import Benchmark, Measured, note
from _bench.choosing import refuse_unmatched
from _bench.gaps.machines import SmallJobs, machines

from bftrainer.lab.compare import Interval, interval
from bftrainer.lab.parallel import play_each
from bftrainer.lab.site.arms import BLOCK_S, ArmOutcome, play
from bftrainer.lab.site.losses import PLANNED
from bftrainer.site.policy.model import SitePolicy

DEFAULTS: Final = (SitePolicy().min_gap_s, SitePolicy().gap_margin_s)
# min_gap_s, gap_margin_s
TRIED: Final = (
    (0.0, 60.0),
    (30.0, 60.0),
    (60.0, 60.0),
    (120.0, 60.0),
    (180.0, 60.0),
    (120.0, 0.0),
    (60.0, 0.0),
)
QUICK_TRIED: Final = ((0.0, 60.0), (60.0, 60.0), (120.0, 60.0), (120.0, 0.0))
SEEDS, QUICK_SEEDS = 4, 1
BLOCKS_PER_H: Final = 3600.0 / BLOCK_S
SHORTENED: Final = 0.5  # what a gap setting may shift of the harvest before it matters, in points


@dataclass(frozen=True, slots=True)
class Task:
    """One run; hashed and pickled."""

    machine: str
    seed: int
    min_gap_s: float
    margin_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A machine with one pair of settings, all seeds."""

    machine: str
    min_gap_s: float
    margin_s: float
    idle_share: float  # of the machine's node-time
    trained: float  # of the idle node-time
    oracle: float  # of the idle node-time
    planned: float  # of the idle node-time: left alone for a planned use that was near
    causes: Mapping[str, float]  # of the idle node-time
    added_node_s_per_h: Interval
    added_share: float  # of the node-seconds that are waited without bftrainer
    against_defaults: Interval  # node-seconds per hour, block by block
    added_job_s: float  # mean delay of a job
    preempted: int
    lost: int
    avoidable: int
    pilots: int
    pilots_trained: int


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Play all machines with all settings."""
    tried = QUICK_TRIED if arguments.quick else TRIED
    n_seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    refuse_unmatched(arguments.machine or (), [machine.name for machine in machines()])
    for machine in machines():
        if arguments.machine and not any(word in machine.name for word in arguments.machine):
            continue
        tasks = [Task(machine.name, s, *pair) for s in range(1, n_seeds + 1) for pair in tried]
        played = play_each(_play, tasks, processes=arguments.processes)
        of = partial(_outcomes, played, machine.name, n_seeds)
        rows = [row_of(machine, pair, of(pair), of(DEFAULTS)) for pair in tried]
        measured.results.setdefault("rows", []).extend(asdict(row) for row in rows)
        _tell(measured, machine.name, rows)
        default = next(row for row in rows if (row.min_gap_s, row.margin_s) == DEFAULTS)
        best = max(rows, key=lambda row: row.trained)
        gained = 100.0 * (best.trained - default.trained)
        note(f"{machine.name}: {gained:.2f} points of the idle time more at most")
        measured.at_most(
            f"{machine.name}: idle time that other gap settings would add",
            round(gained, 3),
            SHORTENED,
            "points",
            f"min_gap_s {best.min_gap_s:g}, gap_margin_s {best.margin_s:g}; "
            f"{default.trained:.1%} trained of {default.oracle:.1%} that an oracle holds; "
            f"harm against the defaults {best.against_defaults.shown(0, sign='+')} node-s/h",
        )


def _play(task: Task) -> ArmOutcome:
    machine = next(one for one in machines() if one.name == task.machine)
    values = {"min_gap_s": task.min_gap_s, "gap_margin_s": task.margin_s}
    return play(machine.stage(task.seed, values), "bftrainer")


def _outcomes(
    played: Mapping[Task, ArmOutcome], name: str, n_seeds: int, pair: tuple[float, float]
) -> list[ArmOutcome]:
    return [played[Task(name, seed, *pair)] for seed in range(1, n_seeds + 1)]


def row_of(
    machine: SmallJobs,
    pair: tuple[float, float],
    outcomes: Sequence[ArmOutcome],
    defaults: Sequence[ArmOutcome],
) -> Row:
    """Put the seeds of a pair of settings together."""
    harvests = [one.harvest for one in outcomes if one.harvest is not None]
    idle_s = sum(h.idle_s for h in harvests)
    causes: Counter[str] = Counter()
    for harvest in harvests:
        causes.update(harvest.causes_s)
    added, usual = _added(outcomes), _added(defaults)
    without_s = sum(before_s for one in outcomes for before_s, _ in one.node_blocks)
    job_blocks = [block for one in outcomes for block in one.blocks]
    n_jobs = sum(len(machine.stage(seed + 1, {}).jobs) for seed in range(len(outcomes)))
    return Row(
        machine=machine.name,
        min_gap_s=pair[0],
        margin_s=pair[1],
        idle_share=idle_s / (machine.n_nodes * machine.hours * 3600.0 * len(outcomes)),
        trained=sum(h.trained_s for h in harvests) / idle_s,
        oracle=sum(h.oracle_s for h in harvests) / idle_s,
        planned=causes[PLANNED] / idle_s,
        causes={cause: seconds / idle_s for cause, seconds in causes.most_common()},
        added_node_s_per_h=_per_h(added),
        added_share=sum(added) / without_s,
        against_defaults=_per_h([one - other for one, other in zip(added, usual, strict=True)]),
        added_job_s=sum(after_s - before_s for before_s, after_s in job_blocks) / n_jobs,
        preempted=sum(one.preempted for one in outcomes),
        lost=sum(one.lost for one in outcomes),
        avoidable=sum(one.avoidable for one in outcomes),
        pilots=sum(h.pilots for h in harvests),
        pilots_trained=sum(h.pilots_trained for h in harvests),
    )


def _added(outcomes: Sequence[ArmOutcome]) -> list[float]:
    return [after_s - before_s for one in outcomes for before_s, after_s in one.node_blocks]


def _per_h(node_s: Sequence[float]) -> Interval:
    of_all = interval([BLOCKS_PER_H * one for one in node_s])
    assert of_all is not None  # noqa: S101 - no block is missing
    return of_all


def _tell(measured: Measured, name: str, rows: Sequence[Row]) -> None:
    cells: list[list[Any]] = [
        [
            f"{row.min_gap_s:g} + {row.margin_s:g}",
            f"{100 * row.idle_share:.1f}",
            f"{100 * row.trained:.1f}",
            f"{100 * row.oracle:.1f}",
            f"{100 * row.planned:.1f}",
            row.added_node_s_per_h.shown(0, sign="+"),
            f"{100 * row.added_share:+.2f}",
            row.against_defaults.shown(0, sign="+"),
            f"{row.added_job_s:+.2f}",
            f"{row.avoidable}, {row.lost}",
            str(row.preempted),
            f"{row.pilots_trained}/{row.pilots}",
        ]
        for row in rows
    ]
    heads = (
        "min_gap_s + gap_margin_s",
        "idle %",
        "trained, % of it",
        "oracle",
        "plan near",
        "added node-s/h",
        "% of waits",
        "against defaults",
        "s per job",
        "cycles lost: avoidable, all",
        "preempted",
        "pilots that trained",
    )
    measured.table(name, heads, cells)


BENCHMARK = Benchmark(
    name="gaps",
    title="Short gaps",
    about=__doc__,
    quick=f"{QUICK_SEEDS} seed instead of {SEEDS}, {len(QUICK_TRIED)} pairs of settings",
    measure=measure,
    options={
        "--machine": {
            "nargs": "+",
            "metavar": "WORD",
            "help": "only those with this in their name",
        },
        "--seeds": {"type": int, "help": "how many draws of each machine's jobs"},
        "--processes": {"type": int, "default": os.cpu_count() or 1, "help": "runs side by side"},
    },
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
