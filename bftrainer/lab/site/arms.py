"""Arms of an experiment on the simulated site, each from the same stage, and the oracle.

Two schedules that differ by one start are soon different altogether: the phase of backfill alone
changes the mean wait of hours by a tenth and more. So what bftrainer adds is measured block by
block: each begins with a copy of the machine beside bftrainer, in which it is not, and both run on
to the end of the block. The same jobs come to all arms, which are played in worker processes.

The oracle is the node time that pilots could have held if all starts and ends of jobs were known.
It is bound by Slurm only, and by the reserve: while a job of the queue is blocked, a pilot starts
at the end of the first backfill cycle that began after its node fell idle, if a minute of it fits
what that cycle planned on the node; if no job is blocked, one tick of the main scheduler later.
It is gone in the moment in which the node's next job starts, and never asked for in vain.
"""

from __future__ import annotations

import copy
import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from statistics import fmean
from typing import Any, Literal

from bftrainer.lab.site.machine import (
    JobSpec,
    Machine,
    Maintenance,
    Neighbour,
    PreemptableUsers,
    SchedulerSettings,
    SiteJob,
)
from bftrainer.lab.site.scheduler import (
    Backfill,
    BlockedSince,
    MainScheduler,
    Opening,
    knows_nobody,
)
from bftrainer.lab.site.sidecar import Core, Sidecar
from bftrainer.lab.site.timeline import positions
from bftrainer.model.parts import Lend

TICK_S = 2.0  # from a submission to the main scheduler's pass, in the mean
SHORTEST_S = 60.0  # limit that Slurm knows
BLOCK_S, BLOCK_CYCLES = 1200.0, 10  # the least length of a block, in seconds and in cycles
Span = tuple[float, float]
Arm = Literal["without", "bftrainer", "preemptable"]


def idle_spans(
    jobs: Iterable[SiteJob], n_nodes: int, window: Span, maintenance: Iterable[Maintenance] = ()
) -> list[list[Span]]:
    """Return when each node had no ordinary job and was not closed, within the window."""
    busy: list[list[Span]] = [[] for _ in range(n_nodes)]
    for closed in maintenance:
        for node in positions(closed.nodes):
            busy[node].append((closed.start_s, closed.end_s))
    _, window_end_s = window
    for job in jobs:
        if job.start_s is None:
            continue
        span = (job.start_s, window_end_s if job.end_s is None else job.end_s)
        for node in positions(job.nodes):
            busy[node].append(span)
    return [list(_between(sorted(spans), window)) for spans in busy]


def _between(busy: Sequence[Span], window: Span) -> Iterator[Span]:
    free_s, until_s = window
    for start_s, end_s in busy:
        if start_s > free_s:
            yield free_s, min(start_s, until_s)
        free_s = max(free_s, end_s)
        if free_s >= until_s:
            return
    yield free_s, until_s


class Oracle:
    """The times at which pilots could start on a machine."""

    def __init__(self, openings: Sequence[Opening], waits: Sequence[BlockedSince]) -> None:
        """Take what the schedulers noted.

        Args:
            openings: cycles of backfill, as they came to preemptable jobs.
            waits: from when on a job of the queue was blocked, and from when none was.
        """
        self._openings, self._waits = openings, waits

    def node_s(self, idle: Sequence[Sequence[Span]], reserve: int) -> float:
        """Return the node-seconds held, ``reserve`` of the idle nodes being left alone."""
        usable = chain.from_iterable(self.usable(idle).values())
        return _with_reserve(usable, chain.from_iterable(idle), reserve)

    def usable(self, idle: Sequence[Sequence[Span]]) -> dict[int, list[Span]]:
        """Return when pilots could be on each node, before the reserve."""
        return {node: list(self._held(1 << node, spans)) for node, spans in enumerate(idle)}

    def _held(self, node: int, spans: Sequence[Span]) -> Iterator[Span]:
        for from_s, until_s in spans:
            at_s = from_s
            while at_s < until_s:
                start_s, end_s = self._next(node, at_s)
                if end_s - start_s > SHORTEST_S and start_s < until_s:
                    yield start_s, min(end_s, until_s)
                    at_s = end_s
                else:
                    at_s = start_s

    def _next(self, node: int, at_s: float) -> Span:
        """Return when Slurm comes to a pilot next, and by when that has to be over."""
        open_s, close_s = self._unblocked(at_s)
        n = bisect_left(self._openings, at_s, key=attrgetter("began_s"))
        opening: Opening | None = None
        if n < len(self._openings):
            opening = self._openings[n]
        if opening is None or open_s + TICK_S < min(opening.at_s, close_s):
            return open_s + TICK_S, math.inf  # it goes on when somebody waits again
        until_s = min((s for s, nodes in opening.planned if nodes & node), default=math.inf)
        return opening.at_s, until_s

    def _unblocked(self, at_s: float) -> Span:
        """Return the first time from then on in which no job of the queue is blocked."""
        n = max(0, bisect_left(self._waits, at_s, key=attrgetter("at_s")) - 1)
        for k in range(n, len(self._waits)):
            if not self._waits[k].is_blocked:
                end_s = self._waits[k + 1].at_s if k + 1 < len(self._waits) else math.inf
                if end_s > at_s:
                    return max(at_s, self._waits[k].at_s), end_s
        return math.inf, math.inf


def _with_reserve(usable: Iterable[Span], idle: Iterable[Span], reserve: int) -> float:
    changes: list[tuple[float, int, int]] = []  # when, of the usable nodes, of the idle ones
    for start_s, end_s in usable:
        changes += [(start_s, 1, 0), (end_s, -1, 0)]
    for start_s, end_s in idle:
        changes += [(start_s, 0, 1), (end_s, 0, -1)]
    total, n_usable, n_idle, before_s = 0.0, 0, 0, 0.0
    for at_s, usable_step, idle_step in sorted(changes):
        total += (at_s - before_s) * max(0, min(n_usable, n_idle - reserve))
        n_usable, n_idle, before_s = n_usable + usable_step, n_idle + idle_step, at_s
    return total


def alone(machine: Machine, backfill: Backfill) -> Machine:
    """Copy a machine, without its neighbour and the neighbour's jobs."""
    neighbour, know, events = machine.neighbour, backfill.know, machine.events
    machine.neighbour, backfill.know = Neighbour(), knows_nobody
    machine_events = []
    for at_s, turn, action in events:
        if _owner(action) is not neighbour:
            machine_events.append((at_s, turn, action))
    machine.events = sorted(machine_events, key=itemgetter(0, 1))  # a heap with holes is none
    try:
        twin = copy.deepcopy(machine)
    finally:
        machine.neighbour, backfill.know, machine.events = neighbour, know, events
    for mine in list(twin.preemptable.values()):
        twin.cancel_preemptable(mine)
    if twin.completing:
        twin.completing = 0
        twin.scheduler.wants_pass(is_end=True)
    return twin


def waiting_s(machine: Machine, from_s: float, to_s: float, *, times_nodes: bool = False) -> float:
    """Return how long all jobs together waited in a span that is over.

    With ``times_nodes`` each job's wait counts once for each of its nodes.
    """
    total_s = 0.0
    for job in machine.jobs:
        if job.spec.submit_s < to_s and job.is_eligible and not job.is_refused:
            start_s = to_s if job.start_s is None else min(job.start_s, to_s)
            wait_s = max(0.0, start_s - max(job.spec.submit_s, from_s))
            if times_nodes:
                wait_s *= job.spec.n_nodes
            total_s += wait_s
    return total_s


def _owner(action: object) -> object:
    if isinstance(action, partial):
        action = action.func
    return getattr(action, "__self__", None)


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
    # Of the site's policy, where they are not the defaults.
    policy_values: Mapping[str, Any] = field(default_factory=dict)
    lend: Lend = Lend.NODES
    settle_s: float = 0.0  # after the warm-up: submissions until then are not counted
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """Node-seconds, and what they cost the controller."""

    held_s: float  # a part of a node counts as its share of the GPUs
    held_gpu_s: float = 0.0  # GPU-seconds of the same, where nodes have sizes
    trained_s: float = 0.0  # of pilots that have left: held after their workers' start
    oracle_s: float
    idle_s: float
    submissions: int
    releases: int
    pilots: int  # requested
    pilots_trained: int  # whose node made a first step
    decisions: int
    decide_s: float  # processor time
    # Of what the oracle would hold without a reserve, by cause; "held" is what we held of it.
    causes_s: Mapping[str, float]


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
    node_blocks: tuple[tuple[float, float], ...] = ()  # node-seconds of the same waits
    harvest: Harvest | None = None


def play(stage: SharedStage, arm: Arm) -> ArmOutcome:
    """Run one arm."""
    machine = Machine(stage.slurm, stage.maintenance)
    if arm == "bftrainer":
        core = Core(
            machine,
            start_s=stage.start_s,
            poll_s=stage.poll_s,
            policy_values=stage.policy_values,
            lend=stage.lend,
        )
        outcome, _ = play_beside(stage, machine, core)
        return outcome
    MainScheduler(machine)
    backfill = Backfill(machine)
    machine.load(stage.jobs)
    if arm == "preemptable":
        machine.at(stage.warm_s, PreemptableUsers(machine, stage.seed).begin)
    return _outcome(stage, machine, backfill)


def play_beside(stage: SharedStage, machine: Machine, core: Core) -> tuple[ArmOutcome, Harvest]:
    """Run a machine with bftrainer beside it."""
    sidecar, main = Sidecar(machine, hello_s=stage.hello_s, core=core), MainScheduler(machine)
    backfill = Backfill(machine, sidecar.know)
    machine.load(stage.jobs)
    sidecar.last_cycle = lambda: backfill.last
    machine.at(stage.warm_s, sidecar.begin)
    machine.at(stage.warm_s + stage.settle_s, sidecar.count_from_now)
    outcome = _outcome(stage, machine, backfill, has_blocks=True)
    sidecar.count()
    window = (stage.warm_s + stage.settle_s, stage.end_s)
    idle = idle_spans(machine.jobs, stage.slurm.n_nodes, window, stage.maintenance)
    oracle = Oracle(backfill.openings, main.waits)
    harvest = Harvest(
        held_s=sidecar.held_s,
        held_gpu_s=sidecar.held_gpu_s,
        trained_s=sidecar.trained_s,
        oracle_s=oracle.node_s(idle, core.settings.reserve_nodes_per_type),
        idle_s=sum(to_s - from_s for from_s, to_s in chain.from_iterable(idle)),
        submissions=sidecar.n_submissions,
        releases=sidecar.n_releases,
        pilots=len(sidecar.requested),
        pilots_trained=len(sidecar.trained),
        decisions=core.n_decisions,
        decide_s=core.cpu_s,
        causes_s=sidecar.causes.add_up(
            oracle.usable(idle), {o.at_s: o.began_s for o in backfill.openings}
        ),
    )
    return replace(outcome, harvest=harvest), harvest


def _outcome(
    stage: SharedStage, machine: Machine, backfill: Backfill, *, has_blocks: bool = False
) -> ArmOutcome:
    """Run to the end."""
    began_s = time.process_time()
    machine.run(stage.warm_s)
    starts, cycles = backfill.n_starts, backfill.n_cycles
    jobs_blocks: list[Span] = []
    node_blocks: list[Span] = []
    if has_blocks:
        for jobs_s, nodes_s in run_blocks(stage, machine, backfill):
            jobs_blocks.append(jobs_s)
            node_blocks.append(nodes_s)
    machine.run(stage.end_s)
    missed = [miss for miss in backfill.lost if miss.cycle_s >= stage.warm_s]
    jobs = [job for job in machine.jobs if job.spec.submit_s >= stage.warm_s]
    waits_s = []
    for job in jobs:
        if job.spec.submit_s < stage.end_s and job.is_eligible and not job.is_refused:
            start_s = stage.end_s if job.start_s is None else job.start_s
            waits_s.append(start_s - job.spec.submit_s)
    return ArmOutcome(
        wait_s=fmean(waits_s or [0.0]),
        refused=sum(job.is_refused for job in jobs),
        backfill_starts=backfill.n_starts - starts,
        cycles=backfill.n_cycles - cycles,
        lost=len(missed),
        lost_to_neighbour=sum(miss.was_preempting for miss in missed),
        avoidable=sum(miss.was_known for miss in missed),
        preempted=machine.n_preempted,
        cpu_s=time.process_time() - began_s,
        blocks=tuple(jobs_blocks),
        node_blocks=tuple(node_blocks),
    )


def run_blocks(
    stage: SharedStage, machine: Machine, backfill: Backfill
) -> Iterator[tuple[Span, Span]]:
    """Run block by block, and each once more without bftrainer; yield what was waited.

    In job-seconds and in node-seconds, each without bftrainer and beside it.
    """
    period_s = stage.slurm.bf_interval_s + stage.slurm.bf_duration_s
    length_s = max(BLOCK_S, BLOCK_CYCLES * period_s)
    from_s = stage.warm_s + length_s  # by then it holds what it can
    while from_s + length_s <= stage.end_s:
        machine.run(from_s)
        twin, to_s = alone(machine, backfill), from_s + length_s
        twin.run(to_s)
        machine.run(to_s)
        jobs_s = waiting_s(twin, from_s, to_s), waiting_s(machine, from_s, to_s)
        twin_nodes_s = waiting_s(twin, from_s, to_s, times_nodes=True)
        yield jobs_s, (twin_nodes_s, waiting_s(machine, from_s, to_s, times_nodes=True))
        from_s = to_s
