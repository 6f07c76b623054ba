"""A researcher's own daemon on a partition that others preempt, beside ``sbatch --requeue``.

On a real 4-node Slurm whose administrator knows nothing of bftrainer: seconds from ``bftrainer up``
to the first committed step, preemptions by other users' jobs, whether anything was restarted or
any sample used twice, pauses, and samples per node-second that others left. The daemon is killed
half-way. In the same run the same training as a job with ``--requeue`` and its own checkpoints.
All arms meet the same jobs of others.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, Literal, TypeVar

from _bench.benchmark import Benchmark, Measured, note
from _bench.own import arms, people
from _bench.own.arms import Elastic, Trained
from _bench.own.people import Researcher

from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster
from slurm_plugins.testcluster.workload import WorkloadItem

T = TypeVar("T")
CELLS: Final[tuple[tuple[Literal["REQUEUE", "CANCEL"], int], ...]] = (
    ("REQUEUE", 0),
    ("REQUEUE", 60),
    ("CANCEL", 0),
    ("CANCEL", 60),
)
RIVALS = (1, 2, 4)  # nodes of the job that is requeued
FIRST_STEP_S = 60.0
PAUSE_S, LONGEST_PAUSE_S = 0.2, 1.0
PREEMPTIONS = 20  # of pilots, in all cells together
BENCHMARK = Benchmark(
    name="own",
    title="A daemon of one's own",
    about=__doc__,
    quick="one cell and one rival, a minute each",
    options={
        "--seconds": {"type": float, "default": 0.0, "help": "of each run"},
        "--seed": {"type": int, "default": 1, "help": "of the other users' jobs"},
        "--user": {"default": "", "help": "account of the researcher; needs root"},
    },
)


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Run all cells, then the jobs that are requeued."""
    seconds = _seconds(options)
    cells: dict[str, Elastic] = {}
    rivals: list[Trained] = []
    for mode, grace_s in CELLS[:1] if options.quick else CELLS:
        name = f"{mode}, GraceTime {grace_s}"
        note(name)
        cells[name] = _in_cluster(options, mode, grace_s, partial(arms.elastic, seconds=seconds))
    for size in RIVALS[1:2] if options.quick else RIVALS:
        note(f"--requeue on {size} nodes")
        work = partial(arms.requeued, seconds=seconds, size=size)
        rivals.append(_in_cluster(options, "REQUEUE", 0, work))
    measured.results |= {
        "seconds": seconds,
        "cells": {name: asdict(cell) for name, cell in cells.items()},
        "requeued": [asdict(rival) for rival in rivals],
    }
    judge(list(cells.values()), rivals, measured, enough=1 if options.quick else PREEMPTIONS)
    _tabulate(cells, rivals, measured)


def _in_cluster(
    options: argparse.Namespace,
    mode: Literal["REQUEUE", "CANCEL"],
    grace_s: int,
    work: Callable[[Researcher, Sequence[WorkloadItem]], T],
) -> T:
    """Run one arm on a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="bft-own-", dir="/tmp") as base:
        Path(base).chmod(0o755)  # jobs of other users must reach it
        config = ClusterConfig(
            directory=Path(base) / "cluster",
            n_nodes=people.N_NODES,
            gpus_per_node=0,
            pilot_partition="scavenge",
            preempt_mode=mode,
            grace_time_s=grace_s,
        )
        with SlurmTestCluster(config) as cluster:
            researcher = Researcher.at(cluster, Path(base) / "home", options.user)
            return work(researcher, people.others(_seconds(options), options.seed))


def _seconds(options: argparse.Namespace) -> float:
    return float(options.seconds or (60.0 if options.quick else 300.0))


def judge(
    cells: Sequence[Elastic], rivals: Sequence[Trained], measured: Measured, *, enough: int
) -> None:
    """Compare with what a researcher expects, all cells together."""
    best = max(rival.samples_per_node_s for rival in rivals)
    ours = cells[0].trained.samples_per_node_s
    measured.at_least("samples per node-second, against the best --requeue", ours / best, 1.0, "x")
    measured.at_most("first committed step", max(c.trained.begun_s for c in cells), FIRST_STEP_S)
    measured.at_least("preemptions", sum(c.preemptions for c in cells), enough, "")
    wrong = sum(not use.is_once for cell in cells for use in cell.epochs)
    epochs = f"{sum(len(cell.epochs) for cell in cells)} epochs"
    measured.at_most("epochs with a sample used twice or never", wrong, 0, "", note=epochs)
    measured.at_most("failures of trainers", sum(c.failures for c in cells), 0, "")
    pauses = [pause_s for cell in cells for pause_s in cell.pauses_s] or [0.0]
    note = f"{len(pauses)} rescales"
    measured.at_most("pause of a rescale, median", median(pauses), PAUSE_S, note=note)
    measured.at_most("pause of a rescale, longest", max(pauses), LONGEST_PAUSE_S, note=note)


def _tabulate(found: dict[str, Elastic], rivals: list[Trained], measured: Measured) -> None:
    rows = [
        (
            name,
            f"{cell.trained.samples_per_node_s:.1f}",
            f"{cell.trained.begun_s:.1f}",
            str(cell.preemptions),
            str(cell.restarts),
            f"{median(cell.pauses_s or (0.0,)):.2f}",
            f"{max(cell.pauses_s, default=0.0):.2f}",
            f"{median(cell.trained.waits_s or (0.0,)):.1f}",
        )
        for name, cell in found.items()
    ]
    rows += [
        (rival.arm, f"{rival.samples_per_node_s:.1f}", f"{rival.begun_s:.1f}", "", "", "", "",
         f"{median(rival.waits_s or (0.0,)):.1f}")
        for rival in rivals
    ]  # fmt: skip
    heads = ("arm", "samples/node-s", "first step s", "preemptions", "from checkpoint",
             "pause s", "longest s", "others wait s")  # fmt: skip
    measured.table("Training on what others leave", heads, rows)


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
