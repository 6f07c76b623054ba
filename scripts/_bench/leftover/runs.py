"""Plays a log's jobs on a simulated site that shares nodes, run by run, in worker processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from _bench.leftover import philly
from _bench.leftover.philly import WeekDemand
from _bench.leftover.split import IdleSplit, split_of
from bftrainer.lab.site.machine import Machine, SchedulerSettings
from bftrainer.lab.site.scheduler import Backfill, MainScheduler

BF_INTERVAL_S = 120.0
BF_MAX_JOB_TEST = 100  # of bursts of hundreds of jobs, more would be planned in vain
# As slurm.conf(5) asks for: a window of about the longest jobs, and then a coarser resolution.
BF_WINDOW_S, BF_RESOLUTION_S = 7 * philly.DAY_S, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekRun:
    """A run to make."""

    demand: WeekDemand
    is_spread: bool  # the least loaded node first (CR_LLN)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekOutcome:
    """The result of a run; waits are those of jobs submitted in the counted span."""

    split: IdleSplit
    n_jobs: int  # submitted in the counted span
    mean_wait_s: float  # until the end, where a job has not started
    n_waiting: int  # at the end
    by_backfill: int
    cpu_s: float


def play(task: WeekRun, log: Path) -> WeekOutcome:
    """Make a run."""
    demand, began_s = task.demand, time.process_time()
    machine = Machine(
        SchedulerSettings(
            n_nodes=demand.n_nodes,
            bf_interval_s=BF_INTERVAL_S,
            bf_max_job_test=BF_MAX_JOB_TEST,
            bf_window_s=BF_WINDOW_S,
            bf_resolution_s=BF_RESOLUTION_S,
            capacities=demand.capacities,
            is_least_loaded_first=task.is_spread,
        )
    )
    MainScheduler(machine)
    backfill = Backfill(machine)
    with log.open(encoding="utf-8", newline="") as lines:
        machine.load(philly.draw(philly.read(lines), demand))
    machine.run(demand.end_s)
    counted_jobs = [job for job in machine.jobs if job.spec.submit_s >= demand.warm_s]
    starts_s = [demand.end_s if job.start_s is None else job.start_s for job in counted_jobs]
    return WeekOutcome(
        split=split_of(
            machine.jobs, demand.n_nodes, demand.gpus_per_node, (demand.warm_s, demand.end_s)
        ),
        n_jobs=len(counted_jobs),
        mean_wait_s=fmean(
            at_s - job.spec.submit_s for at_s, job in zip(starts_s, counted_jobs, strict=True)
        ),
        n_waiting=len(machine.pending),
        by_backfill=backfill.n_starts,
        cpu_s=time.process_time() - began_s,
    )


def run(
    tasks: Sequence[WeekRun], log: Path, n_processes: int
) -> Iterator[tuple[WeekRun, WeekOutcome]]:
    """Make all runs; yield each when it is done."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, mp_context=context) as pool:
        dearest = sorted(tasks, key=lambda task: -task.demand.load)
        futures = {pool.submit(play, task, log): task for task in dearest}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # who is interrupted does not wait for them all
