"""Arms of an experiment on the simulated site, each from the same stage.

Two schedules that differ by one start are soon different altogether: the phase of backfill alone
changes the mean wait of hours by a tenth and more. So what bftrainer adds is measured block by
block: each begins with a copy of the machine beside bftrainer, in which it is not, and both run on
to the end of the block.

Called by ``grid`` and ``scenarios`` in worker processes. The same jobs come to all arms.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from bftrainer.lab.site.jobs import JobSpec
from bftrainer.lab.site.machine import (
    Machine,
    Maintenance,
    Neighbour,
    PreemptableUsers,
    SchedulerSettings,
)
from bftrainer.lab.site.oracle import Oracle, idle_spans
from bftrainer.lab.site.scheduler import Backfill, MainScheduler, knows_nobody

if TYPE_CHECKING:
    from bftrainer.lab.site.sidecar import Sidecar


def alone(machine: Machine, backfill: Backfill) -> Machine:
    """Copy a machine, without its neighbour and the neighbour's jobs."""
    neighbour, know, kept = machine.neighbour, backfill.know, machine.events
    machine.neighbour, backfill.know = Neighbour(), knows_nobody
    own = [event for event in kept if _owner(event[2]) is not neighbour]
    machine.events = sorted(own, key=itemgetter(0, 1))  # a heap with holes is none
    try:
        twin = copy.deepcopy(machine)
    finally:
        machine.neighbour, backfill.know, machine.events = neighbour, know, kept
    for mine in list(twin.preemptable.values()):
        twin.cancel_preemptable(mine)
    return twin


def waiting_s(machine: Machine, from_s: float, to_s: float) -> float:
    """Return how long all jobs together waited in a span that is over."""
    total_s = 0.0
    for job in machine.jobs:
        if job.spec.submit_s < to_s and job.is_eligible and not job.is_refused:
            start_s = to_s if job.start_s is None else min(job.start_s, to_s)
            total_s += max(0.0, start_s - max(job.spec.submit_s, from_s))
    return total_s


def _owner(action: object) -> object:
    if isinstance(action, partial):
        action = action.func
    return getattr(action, "__self__", None)


BLOCK_S, BLOCK_CYCLES = 1200.0, 10
Arm = Literal["without", "bftrainer", "preemptable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStage:
    """The settings that all arms share."""

    slurm: SchedulerSettings
    jobs: tuple[JobSpec, ...]
    warm_s: float  # nobody is beside the machine before, and nothing is counted
    end_s: float
    maintenance: tuple[Maintenance, ...] = ()
    hello_s: float = 3.0
    start_s: float = 0.0  # of a worker, from its agent's hello to its first step
    poll_s: float | None = None  # between two looks; None: the default
    settle_s: float = 0.0  # after the warm-up: submissions until then are not counted
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """Node-seconds, and what they cost the controller."""

    held_s: float
    oracle_s: float
    idle_s: float
    submissions: int
    releases: int
    pilots: int  # requested
    pilots_trained: int  # whose node made a first step
    decisions: int
    decide_s: float  # processor time


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmOutcome:
    """The result of one arm."""

    wait_s: float  # mean of the jobs submitted after the warm-up; censored at the end
    refused: int  # immediate jobs
    backfill_starts: int
    cycles: int
    lost: int  # jobs that fitted at the begin of a cycle and started a cycle later
    lost_to_neighbour: int  # of these: a preemptable job was in the way
    avoidable: int  # of these: bftrainer knew one main pass before
    preempted: int
    cpu_s: float
    blocks: tuple[tuple[float, float], ...] = ()  # job-seconds waited, without and beside
    harvest: Harvest | None = None


def play(stage: SharedStage, arm: Arm) -> ArmOutcome:
    """Run one arm."""
    began_s = time.process_time()
    machine = Machine(stage.slurm, stage.maintenance)
    main = MainScheduler(machine)
    sidecar = _sidecar(machine, stage) if arm == "bftrainer" else None
    backfill = Backfill(machine, sidecar.know) if sidecar else Backfill(machine)
    machine.load(stage.jobs)
    if sidecar is not None:
        sidecar.last_cycle = lambda: backfill.last
        machine.at(stage.warm_s, sidecar.begin)
        machine.at(stage.warm_s + stage.settle_s, sidecar.count_from_now)
    elif arm == "preemptable":
        machine.at(stage.warm_s, PreemptableUsers(machine, stage.seed).begin)
    machine.run(stage.warm_s)
    starts, cycles = backfill.n_starts, backfill.n_cycles
    blocks = tuple(run_blocks(stage, machine, backfill)) if sidecar else ()
    machine.run(stage.end_s)
    lost = [one for one in backfill.lost if one.cycle_s >= stage.warm_s]
    harvest = _harvest(stage, machine, sidecar, backfill, main) if sidecar else None
    counted = [job for job in machine.jobs if job.spec.submit_s >= stage.warm_s]
    return ArmOutcome(
        wait_s=mean_wait_s(stage, machine),
        refused=sum(job.is_refused for job in counted),
        backfill_starts=backfill.n_starts - starts,
        cycles=backfill.n_cycles - cycles,
        lost=len(lost),
        lost_to_neighbour=sum(one.was_preempting for one in lost),
        avoidable=sum(one.was_known for one in lost),
        preempted=machine.n_preempted,
        cpu_s=time.process_time() - began_s,
        blocks=blocks,
        harvest=harvest,
    )


def run_blocks(
    stage: SharedStage, machine: Machine, backfill: Backfill
) -> Iterator[tuple[float, float]]:
    """Run block by block, and each once more without bftrainer; yield job-seconds waited."""
    period_s = stage.slurm.bf_interval_s + stage.slurm.bf_duration_s
    length_s = max(BLOCK_S, BLOCK_CYCLES * period_s)
    from_s = stage.warm_s + length_s  # by then it holds what it can
    while from_s + length_s <= stage.end_s:
        machine.run(from_s)
        twin, to_s = alone(machine, backfill), from_s + length_s
        twin.run(to_s)
        machine.run(to_s)
        yield waiting_s(twin, from_s, to_s), waiting_s(machine, from_s, to_s)
        from_s = to_s


def _sidecar(machine: Machine, stage: SharedStage) -> Sidecar:
    # They import the core to judge.
    from bftrainer.lab.site.core import Core  # noqa: PLC0415
    from bftrainer.lab.site.sidecar import Sidecar  # noqa: PLC0415

    core = Core(machine, start_s=stage.start_s, poll_s=stage.poll_s)
    return Sidecar(machine, hello_s=stage.hello_s, core=core)


def mean_wait_s(stage: SharedStage, machine: Machine) -> float:
    """Return the mean wait of the jobs submitted after the warm-up, so far."""
    waits_s = [
        (stage.end_s if job.start_s is None else job.start_s) - job.spec.submit_s
        for job in machine.jobs
        if stage.warm_s <= job.spec.submit_s < stage.end_s
        and job.is_eligible
        and not job.is_refused
    ]
    return fmean(waits_s or [0.0])


def _harvest(
    stage: SharedStage, machine: Machine, sidecar: Sidecar, backfill: Backfill, main: MainScheduler
) -> Harvest:
    sidecar.count()
    window = (stage.warm_s + stage.settle_s, stage.end_s)
    idle = idle_spans(machine.jobs, stage.slurm.n_nodes, window, stage.maintenance)
    oracle = Oracle(backfill.openings, main.waits)
    return Harvest(
        held_s=sidecar.held_s,
        oracle_s=oracle.node_s(idle, sidecar.core.settings.reserve_nodes_per_type),
        idle_s=sum(to_s - from_s for spans in idle for from_s, to_s in spans),
        submissions=sidecar.n_submissions,
        releases=sidecar.n_releases,
        pilots=len(sidecar.requested),
        pilots_trained=len(sidecar.trained),
        decisions=sidecar.core.n_decisions,
        decide_s=sidecar.core.cpu_s,
    )
