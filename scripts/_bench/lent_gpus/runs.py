"""Plays a log's jobs on a simulated site beside a daemon that lends nodes or GPUs, arm by arm.

What the daemon adds is measured block by block, as ``bftrainer.lab.site.arms`` does it: each block
begins with copies of the machine in which the daemon is not, and one of them has its submissions
moved by up to 0.2 s, so that the two without it differ by chance alone (the null pair).
"""

from __future__ import annotations

import enum
import heapq
import multiprocessing
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from _bench.gpus.measures import HandOvers
from _bench.lent_gpus import philly
from _bench.lent_gpus.counts import BlockWait, EndedPilot, EndOfPilot, StartedJob, hand_overs
from _bench.lent_gpus.philly import WeekDemand
from _bench.lent_gpus.split import IdleSplit, split_of
from bftrainer.lab.site.arms import alone, waiting_s
from bftrainer.lab.site.machine import Machine, Preemptable, SchedulerSettings
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.sidecar import Core, Sidecar
from bftrainer.lab.site.timeline import positions
from bftrainer.model.parts import Lend

BF_INTERVAL_S = 120.0
# As slurm.conf(5) asks for: a window of about the longest jobs, and then a coarser resolution.
BF_WINDOW_S, BF_RESOLUTION_S = 7 * philly.DAY_S, 600.0
BLOCK_S = 1200.0
MOVED_S = 0.2  # submissions of the null pair, earlier or later by up to as much
WORKER_START_S = 5.0
NOBODY_LEFT = HandOvers(given_back=0, preempted=0, in_vain=0)
TAKEN_S = 10.0  # longer than a cycle: by then a job for which a GPU was given back has started


class Arm(enum.StrEnum):
    """The daemon beside the jobs."""

    WITHOUT = "without"
    NODES = "whole nodes"
    PARTS = "parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class LentRun:
    """A run to make."""

    demand: WeekDemand
    arm: Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class LentOutcome:
    """The result of a run, of its counted span."""

    mean_wait_s: float  # of jobs submitted in it; until the end, where one has not started
    n_jobs: int
    n_starts: int
    n_lost: int  # a pilot was in the way of a job, which started a cycle later
    split: IdleSplit
    held_gpu_s: float = 0.0  # by pilots whose agent is connected
    blocks: tuple[BlockWait, ...] = ()
    left: HandOvers = NOBODY_LEFT
    n_not_needed: int = 0  # pilots released for no job: for the reserve, for a plan
    n_pilots: int = 0  # requested
    n_decisions: int = 0
    decide_s: float = 0.0  # processor time
    cpu_s: float = 0.0


class WatchedSidecar(Sidecar):
    """A daemon whose pilots' ends are noted."""

    def __init__(self, machine: Machine, core: Core, gpus_per_node: int) -> None:
        super().__init__(machine, core=core)
        self._gpus_per_node = gpus_per_node
        self.ends: list[EndedPilot] = []

    def gone(self, mine: Preemptable) -> None:
        """Note an end."""
        if mine.start_s is not None:
            now_s = self._machine.now_s
            end = EndOfPilot.PREEMPTED
            if mine.name in self.core.given_back:
                end = EndOfPilot.RELEASED
            elif self.book.pilots[mine.name].is_leaving:
                end = EndOfPilot.NOT_NEEDED
            elif now_s >= mine.start_s + mine.limit_s:
                end = EndOfPilot.LIMIT
            gpus = self._gpus_per_node if mine.share is None else mine.share.gpus
            node = mine.at.bit_length() - 1
            self.ends.append(EndedPilot(node=node, gpus=gpus, ended_s=now_s, end=end))
        super().gone(mine)


def slurm_of(demand: WeekDemand) -> SchedulerSettings:
    """Return the settings of the simulated Slurm."""
    return SchedulerSettings(
        n_nodes=demand.n_nodes,
        bf_interval_s=BF_INTERVAL_S,
        bf_window_s=BF_WINDOW_S,
        bf_resolution_s=BF_RESOLUTION_S,
        capacities=demand.capacities,
    )


def play(task: LentRun, log: Path) -> LentOutcome:
    """Make a run."""
    demand, began_s = task.demand, time.process_time()
    machine = Machine(slurm_of(demand))
    MainScheduler(machine)
    backfill = Backfill(machine)
    with log.open(encoding="utf-8", newline="") as lines:
        machine.load(philly.draw(philly.read(lines), demand))
    machine.run(demand.warm_s)
    sidecar: WatchedSidecar | None = None
    if task.arm is not Arm.WITHOUT:
        lend = Lend.AUTO if task.arm is Arm.PARTS else Lend.NODES
        core = Core(machine, start_s=WORKER_START_S, lend=lend)
        sidecar = WatchedSidecar(machine, core, demand.gpus_per_node)
        backfill.know = sidecar.know
        sidecar.last_cycle = lambda: backfill.last
        sidecar.begin()
    begin_s = demand.warm_s + BLOCK_S  # by then it holds what it can
    machine.run(begin_s)
    if sidecar is None:
        machine.run(demand.end_s)
        return _outcome(task, machine, backfill, begin_s, (), None, began_s)
    sidecar.count_from_now()
    blocks = tuple(blocks_of(machine, backfill, begin_s, demand.end_s, demand.seed))
    machine.run(demand.end_s)
    sidecar.count()
    return _outcome(task, machine, backfill, begin_s, blocks, sidecar, began_s)


def blocks_of(
    machine: Machine, backfill: Backfill, begin_s: float, end_s: float, seed: int
) -> Iterator[BlockWait]:
    """Run block by block, and each twice more without the daemon."""
    chance = random.Random(seed)  # noqa: S311 - moved submissions, not a secret
    from_s = begin_s
    while from_s + BLOCK_S <= end_s:
        machine.run(from_s)
        to_s = from_s + BLOCK_S
        without, again = alone(machine, backfill), alone(machine, backfill)
        move_submissions(again, chance)
        for played in (without, again, machine):
            played.run(to_s)
        yield BlockWait(
            jobs=sum(from_s <= job.spec.submit_s < to_s for job in machine.jobs),
            without_s=waiting_s(without, from_s, to_s),
            beside_s=waiting_s(machine, from_s, to_s),
            again_s=waiting_s(again, from_s, to_s),
        )
        from_s = to_s


def move_submissions(machine: Machine, chance: random.Random) -> None:
    """Let users submit a little earlier or later than they would."""
    moved = []
    for at_s, turn, action in machine.events:
        shift_s = 0.0
        if isinstance(action, partial) and getattr(action.func, "__name__", "") == "_submit":
            shift_s = chance.uniform(-MOVED_S, MOVED_S)
        moved.append((max(machine.now_s, at_s + shift_s), turn, action))
    machine.events = moved
    heapq.heapify(machine.events)


def _outcome(
    task: LentRun,
    machine: Machine,
    backfill: Backfill,
    begin_s: float,
    blocks: tuple[BlockWait, ...],
    sidecar: WatchedSidecar | None,
    began_s: float,
) -> LentOutcome:
    demand = task.demand
    counted_jobs = [job for job in machine.jobs if job.spec.submit_s >= begin_s]
    waits_s = [
        (demand.end_s if job.start_s is None else job.start_s) - job.spec.submit_s
        for job in counted_jobs
    ]
    starts = [
        StartedJob(
            node=node,
            gpus=demand.gpus_per_node if job.spec.share is None else job.spec.share.gpus,
            started_s=job.start_s,
        )
        for job in machine.jobs
        if job.start_s is not None and job.start_s >= begin_s
        for node in positions(job.nodes)
    ]
    outcome = LentOutcome(
        mean_wait_s=fmean(waits_s or [0.0]),
        n_jobs=len(counted_jobs),
        n_starts=sum(j.start_s is not None and j.start_s >= begin_s for j in machine.jobs),
        n_lost=sum(
            lost_cycle.was_preempting
            for lost_cycle in backfill.lost
            if lost_cycle.cycle_s >= begin_s
        ),
        split=split_of(machine.jobs, demand.n_nodes, demand.gpus_per_node, (begin_s, demand.end_s)),
        cpu_s=time.process_time() - began_s,
    )
    if sidecar is None:
        return outcome
    within_s = BF_INTERVAL_S + TAKEN_S
    ended = [p for p in sidecar.ends if begin_s <= p.ended_s < demand.end_s - within_s]
    return LentOutcome(
        mean_wait_s=outcome.mean_wait_s,
        n_jobs=outcome.n_jobs,
        n_starts=outcome.n_starts,
        n_lost=outcome.n_lost,
        split=outcome.split,
        held_gpu_s=sidecar.held_gpu_s,
        blocks=blocks,
        left=hand_overs(ended, starts, within_s),
        n_not_needed=sum(pilot.end is EndOfPilot.NOT_NEEDED for pilot in ended),
        n_pilots=len(sidecar.requested),
        n_decisions=sidecar.core.n_decisions,
        decide_s=sidecar.core.cpu_s,
        cpu_s=outcome.cpu_s,
    )


def run(
    tasks: Sequence[LentRun], log: Path, n_processes: int
) -> Iterator[tuple[LentRun, LentOutcome]]:
    """Make all runs; yield each when it is done."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, mp_context=context) as pool:
        futures = {pool.submit(play, task, log): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # who is interrupted does not wait for them all
