"""The state of a simulated Slurm machine, and its clock.

The two schedulers (``scheduler``) start ordinary jobs on it; the owner of preemptable jobs is a
``Neighbour``. One ordinary partition and, below it, one whose jobs are cancelled for it
(PreemptMode=CANCEL, by tier). All times are seconds since the begin of the run.

Where the settings have capacities of nodes, jobs share them (``occupancy``), and there may be
several ordinary partitions, with nodes in common or not.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Literal

from bftrainer.lab.site.occupancy import (
    JobRoom,
    NodeOccupancy,
    SharedNodes,
    SiteTimeline,
    WholeNodes,
)
from bftrainer.lab.site.shared import Need
from bftrainer.lab.site.sharing import NodeCapacity, NodeSet, Share, SitePartition
from bftrainer.model.lookups import by_name

PREEMPT_S = 0.1  # from the signal to the start of who preempts (measured, main scheduler)
# Of ``PreemptableUsers``.
WAITING = 20  # so many jobs are always in the queue
LIMIT_S = 3600.0
SHORTEST_SHARE = 0.2  # of the limit

Kind = Literal["sbatch", "srun", "immediate"]  # srun: tried at once; immediate: then or never
Action = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job, or one task of an array, as its user submits it."""

    number: int
    submit_s: float
    n_nodes: int
    limit_s: float
    run_s: float  # it ends by itself after this, or at its limit
    priority: float = 0.0
    user: str = "u"
    kind: Kind = "sbatch"
    array: int = 0  # tasks of the same array have the same number; 0: none
    held_by: str = ""  # a limit for which Slurm never starts it: its reason in squeue
    share: Share | None = None  # of each node; None: whole nodes
    partition: str = ""  # of ``SchedulerSettings.partitions``; "": the only one
    after: tuple[int, ...] = ()  # it is not in the queue before these jobs have ended

    def __deepcopy__(self, _memo: object) -> JobSpec:
        return self


@dataclass(slots=True, eq=False, kw_only=True)
class SiteJob:
    """A job in the queue or on nodes."""

    spec: JobSpec
    start_s: float | None = None
    end_s: float | None = None
    nodes: NodeSet = 0
    by_backfill: bool = False
    is_refused: bool = False  # immediate, and there was no room
    reason: str = "None"
    planned_s: float | None = None  # backfill's plan, as squeue shows it
    planned: NodeSet = 0
    preempted_in: int = -1  # the last backfill cycle that preempted for it
    tier: int = 1  # of its partition
    key: tuple[int, float, float, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = (-self.tier, -self.spec.priority, self.spec.submit_s, self.spec.number)

    @property
    def is_eligible(self) -> bool:
        """Return whether Slurm would start it if there was room."""
        return not self.spec.held_by

    @property
    def ends_by_s(self) -> float:
        """The time at which a running job reaches its time limit."""
        return math.inf if self.start_s is None else self.start_s + self.spec.limit_s


@dataclass(slots=True, eq=False, kw_only=True)
class Preemptable:
    """A one-node job of the lowest partition: a pilot, or what a user submits there."""

    name: str
    limit_s: float
    share: Share | None = None  # of its node; None: all of it
    node: NodeSet = 0  # the one it asks for; 0: any
    run_s: float = math.inf
    start_s: float | None = None
    at: NodeSet = 0  # where it runs
    is_preempted: bool = False  # it has ended for an ordinary job


class Neighbour:
    """The owner of preemptable jobs on the machine; it is told of jobs as Slurm would tell it."""

    def submitted(self, job: SiteJob) -> None:
        """A user submits an ordinary job."""

    def ended(self, job: SiteJob) -> None:
        """An ordinary job has ended."""

    def started(self, mine: Preemptable) -> None:
        """Slurm has started a job of the neighbour's."""

    def gone(self, mine: Preemptable) -> None:
        """It has ended: cancelled, at its limit, or preempted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The part of slurm.conf that scheduling depends on, with Slurm's defaults."""

    n_nodes: int
    bf_interval_s: float = 30.0  # from the end of a cycle to the next
    bf_duration_s: float = 0.5  # of a cycle
    bf_window_s: float = 86_400.0
    bf_resolution_s: float = 60.0
    bf_max_job_test: int = 500
    bf_max_job_array_resv: int = 20
    default_queue_depth: int = 100
    batch_sched_delay_s: float = 3.0
    sched_min_interval_s: float = 2.0
    sched_interval_s: float = 60.0
    has_epilog: bool = True  # else an end that is natural calls no pass (measured on 22.05)
    tick_phase_s: float = 0.0  # of slurmctld's background thread, which wakes every second
    first_cycle_s: float = 5.0
    end_cost_s: float = 0.0  # from the end of a preemptable job until its node is usable: Epilog
    cycles_s: tuple[float, ...] = ()  # begins of all cycles, where they are known; then no others
    capacities: tuple[NodeCapacity, ...] = ()  # of each node, in order; (): whole nodes only
    partitions: tuple[SitePartition, ...] = ()  # (): one, of all nodes
    is_least_loaded_first: bool = False  # CR_LLN


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """A reservation that is known from the begin: no job runs into it."""

    start_s: float
    end_s: float
    nodes: NodeSet


class Scheduler:
    """The main scheduler, as the machine calls it; this one starts nothing."""

    def wants_pass(self, *, is_end: bool) -> None:
        """Something was submitted or has ended."""

    def try_now(self, job: SiteJob) -> None:
        """Try a job of srun or salloc while it is submitted."""


class Machine:
    """Nodes, queue and clock."""

    def __init__(
        self, settings: SchedulerSettings, maintenance: tuple[Maintenance, ...] = ()
    ) -> None:
        self.settings, self.maintenance = settings, maintenance
        self.now_s = 0.0
        self.every: NodeSet = (1 << settings.n_nodes) - 1
        self.occupancy: NodeOccupancy = WholeNodes(settings.n_nodes)
        if settings.capacities:
            self.occupancy = SharedNodes(settings)
        self._partitions = by_name(settings.partitions)
        self.completing: NodeSet = 0  # after preemptable jobs, not usable yet
        self.closed: NodeSet = 0  # by maintenance
        self.pending: list[SiteJob] = []
        self._depending: list[SiteJob] = []  # submitted, and not in the queue yet
        self._over = set[int]()  # numbers of the jobs that have ended
        self.running: dict[int, SiteJob] = {}
        self.jobs: list[SiteJob] = []
        self.preemptable: dict[str, Preemptable] = {}
        self.version = 0  # of everything but the preemptable jobs
        self.n_preempted = 0
        self.neighbour = Neighbour()
        self.scheduler = Scheduler()
        self.events: list[tuple[float, int, Action]] = []  # a heap
        self._turn = 0  # of the next event; no iterator: machines are copied
        for reservation in maintenance:
            self.at(reservation.start_s, self._reserve)
            self.at(reservation.end_s, self._reserve)

    @property
    def busy(self) -> NodeSet:
        """The nodes with ordinary jobs."""
        return self.occupancy.busy

    @property
    def held(self) -> NodeSet:
        """The nodes with preemptable jobs."""
        return self.occupancy.held

    def nodes_of(self, spec: JobSpec) -> NodeSet:
        """Return the nodes of a job's partition."""
        partition = self._partitions.get(spec.partition)
        if partition is None:
            return self.every
        return partition.nodes

    def is_whole(self, spec: JobSpec) -> bool:
        """Return whether a job has its nodes alone."""
        partition = self._partitions.get(spec.partition)
        return spec.share is None or (partition is not None and partition.is_whole)

    def need_of(self, job: SiteJob) -> Need | None:
        """Return what a job needs of each of its nodes; None: nodes are whole."""
        return self.occupancy.need(job.spec.share, job.spec.partition)

    # ---- the clock -----------------------------------------------------------------------

    def at(self, at_s: float, action: Action) -> None:
        """Let something happen, not before now; what comes first was asked for first."""
        heapq.heappush(self.events, (max(at_s, self.now_s), self._turn, action))
        self._turn += 1

    def run(self, until_s: float) -> None:
        """Let all happen that is due before ``until_s``."""
        events = self.events
        while events and events[0][0] < until_s:
            self.now_s, _, action = heapq.heappop(events)
            action()
        self.now_s = until_s

    # ---- ordinary jobs -------------------------------------------------------------------

    def load(self, specs: Iterable[JobSpec]) -> None:
        """Let users submit all these jobs in their time."""
        for spec in specs:
            job = self.add(spec)
            self.at(spec.submit_s, partial(self._submit, job))

    def add(self, spec: JobSpec) -> SiteJob:
        """Make a job of this machine; it waits for nobody yet."""
        partition = self._partitions.get(spec.partition)
        job = SiteJob(spec=spec)
        if partition is not None:
            job = SiteJob(spec=spec, tier=partition.tier)
        self.jobs.append(job)
        return job

    def wait(self, job: SiteJob) -> None:
        """Put a job into the queue."""
        insort(self.pending, job, key=attrgetter("key"))

    def _submit(self, job: SiteJob) -> None:
        if not self._over.issuperset(job.spec.after):
            self._depending.append(job)
            return
        self.version += 1
        self.wait(job)
        self.neighbour.submitted(job)
        if job.spec.kind == "sbatch":
            self.scheduler.wants_pass(is_end=False)
        else:
            self.scheduler.try_now(job)

    def take_over(self, spec: JobSpec, start_s: float, nodes: NodeSet) -> None:
        """Let a job run that started before now."""
        job = self.add(spec)
        job.start_s, job.nodes = start_s, nodes
        self.running[spec.number] = job
        self.occupancy.take(job)
        self.version += 1
        self.at(start_s + min(spec.run_s, spec.limit_s), partial(self.end, job))

    def start(self, job: SiteJob, room: JobRoom, *, by_backfill: bool = False) -> None:
        """Start a job; the preemptable jobs in its way are cancelled."""
        self.preempt(room.victims)
        self.version += 1
        self.pending.remove(job)
        job.start_s = self.now_s
        if room.victims:
            job.start_s += PREEMPT_S + self.settings.end_cost_s
        job.nodes, job.by_backfill = room.nodes, by_backfill
        job.planned_s, job.planned = None, 0
        self.occupancy.take(job)
        self.running[job.spec.number] = job
        lasts_s = min(job.spec.run_s, job.spec.limit_s)
        self.at(job.start_s + lasts_s, partial(self.end, job))

    def end(self, job: SiteJob) -> None:
        """Let a running job end."""
        if self.running.pop(job.spec.number, None) is None:
            return  # it was ended before its time
        self.version += 1
        self.occupancy.give(job)
        job.end_s = self.now_s
        self._over.add(job.spec.number)
        depending, self._depending = self._depending, []
        for dependent in depending:
            self._submit(dependent)
        self.neighbour.ended(job)
        if self.settings.has_epilog:
            self.scheduler.wants_pass(is_end=True)

    def refuse(self, job: SiteJob) -> None:
        """Turn an immediate job away."""
        self.version += 1
        self.pending.remove(job)
        job.is_refused = True

    def _reserve(self) -> None:
        self.closed = 0
        for reservation in self.maintenance:
            if reservation.start_s <= self.now_s < reservation.end_s:
                self.closed |= reservation.nodes
        self.version += 1
        self.scheduler.wants_pass(is_end=True)

    def open_for(self, limit_s: float) -> NodeSet:
        """Return the nodes on which a job would be over before a maintenance."""
        nodes = self.every & ~self.closed
        for reservation in self.maintenance:
            if self.now_s < reservation.end_s and self.now_s + limit_s > reservation.start_s:
                nodes &= ~reservation.nodes
        return nodes

    def room_for(self, job: SiteJob, among: NodeSet) -> JobRoom | None:
        """Return where Slurm starts a job, free nodes first; None: there is no room."""
        return self.occupancy.room_for(job, among & ~self.completing, self.preemptable.values())

    def timeline(self) -> SiteTimeline:
        """Return what backfill sees with nothing planned."""
        return self.timeline_later()(self.now_s)

    def timeline_later(self) -> Callable[[float], SiteTimeline]:
        """Return a function: what backfill would see at a later time, by what is known now."""
        later = self.occupancy.timeline_later(self.running.values(), self.settings.bf_resolution_s)

        def at(now_s: float) -> SiteTimeline:
            timeline = later(now_s)
            for closed in self.maintenance:
                if closed.end_s > now_s:
                    timeline.cut(closed.start_s, closed.end_s, closed.nodes)
            return timeline

        return at

    # ---- preemptable jobs ----------------------------------------------------------------

    def submit_preemptable(self, mine: Preemptable) -> None:
        """Put one into the queue, behind all ordinary jobs."""
        self.preemptable[mine.name] = mine
        self.scheduler.wants_pass(is_end=False)

    @property
    def waiting_preemptable(self) -> list[Preemptable]:
        """The preemptable jobs that do not run yet, in the order of their submission."""
        return [mine for mine in self.preemptable.values() if mine.start_s is None]

    def start_waiting(
        self, waiting: Iterable[Preemptable], open_for: Callable[[float], NodeSet]
    ) -> None:
        """Start those that find a free node that is open for their limit."""
        for mine in waiting:
            among = (mine.node or self.every) & ~self.completing
            if not self.occupancy.place(mine, among):
                continue  # to ask where it fits is cheaper than to ask how long
            at = self.occupancy.place(mine, among & open_for(mine.limit_s))
            if at:
                mine.start_s, mine.at = self.now_s, at
                self.occupancy.hold(mine)
                end_s = self.now_s + min(mine.run_s, mine.limit_s)
                self.at(end_s, partial(self.cancel_preemptable, mine))
                self.neighbour.started(mine)

    def cancel_preemptable(self, mine: Preemptable) -> None:
        """Take one out of the queue or off its node; one that is gone is no error."""
        if self.preemptable.get(mine.name) is not mine:
            return
        del self.preemptable[mine.name]
        self.occupancy.release(mine)
        self.neighbour.gone(mine)
        if mine.start_s is None:
            return
        if not self.settings.end_cost_s:
            self.scheduler.wants_pass(is_end=True)
            return
        self.completing |= mine.at
        self.at(self.now_s + self.settings.end_cost_s, partial(self._completed, mine.at))

    def _completed(self, nodes: NodeSet) -> None:
        if self.completing & nodes:
            self.completing &= ~nodes
            self.scheduler.wants_pass(is_end=True)

    def preemptable_on(self, nodes: NodeSet) -> tuple[Preemptable, ...]:
        """Return the preemptable jobs that run on some of these nodes."""
        return tuple(mine for mine in self.preemptable.values() if mine.at & nodes)

    def preempt(self, victims: Iterable[Preemptable]) -> None:
        """Cancel preemptable jobs for an ordinary one."""
        for mine in victims:
            self.n_preempted += 1
            mine.is_preempted = True
            self.cancel_preemptable(mine)


class PreemptableUsers(Neighbour):
    """Users who always have one-node jobs in the lowest partition; a cancelled one is replaced."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._machine = machine
        self._chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._number = 0  # of the last job

    def begin(self) -> None:
        """Submit the first ones now."""
        self._machine.neighbour = self
        for _ in range(WAITING):
            self._submit()

    def started(self, _mine: Preemptable) -> None:
        """The next one takes its place in the queue."""
        self._submit()

    def _submit(self) -> None:
        run_s = LIMIT_S * self._chance.uniform(SHORTEST_SHARE, 1.0)
        self._number += 1
        name = f"u{self._number:07d}"
        self._machine.submit_preemptable(Preemptable(name=name, limit_s=LIMIT_S, run_s=run_s))
