"""The state of a simulated Slurm machine, its clock, and backfill's view of its future.

The two schedulers (``scheduler``) start ordinary jobs on it; the owner of preemptable jobs is a
``Neighbour``. One ordinary partition and, below it, one whose jobs are cancelled for it
(PreemptMode=CANCEL, by tier). All times are seconds since the begin of the run.

A ``Timeline`` says which nodes are free from when until when. It is built from the running jobs'
limits; each planned job closes a part of it. As Slurm does it (slurm.conf(5),
``SchedulerParameters``; measured on 22.05): running jobs that end close together, within spans that
begin with 30 s and double, end with the last of them; begin and end of a plan are rounded down to
slots of ``bf_resolution``, and a job whose limit reaches into a closed slot does not fit; what may
be preempted is no obstacle.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple

from bftrainer.lab.site.sharing import NodeCapacity, NodeSet, Share, SitePartition


def lowest(some: NodeSet, count: int) -> NodeSet:
    """Return the ``count`` lowest nodes of a set, or all of it."""
    rest = some
    for _ in range(count):
        rest &= rest - 1
        if not rest:
            break
    return some ^ rest


def positions(some: NodeSet) -> Iterator[int]:
    """Yield the numbers of the nodes, ascending."""
    while some:
        bit = some & -some
        yield bit.bit_length() - 1
        some ^= bit


def neighbours(some: NodeSet, count: int) -> NodeSet:
    """Choose as Slurm does without a topology: neighbours in the order of slurm.conf.

    Of the shortest row that is long enough; while there is none, all of the longest. At least
    ``count`` nodes have to be in ``some``.
    """
    chosen = 0
    rows = sorted(_rows(some), key=itemgetter(1), reverse=True)
    for n, (row, length) in enumerate(rows):
        if length >= count:
            enough = [other for other in rows[n:] if other[1] >= count]
            return chosen | lowest(min(enough, key=itemgetter(1))[0], count)
        chosen |= row
        count -= length
    return chosen


def _rows(some: NodeSet) -> list[tuple[NodeSet, int]]:
    rows = []
    while some:
        row = some & ~(some + (some & -some))
        rows.append((row, row.bit_count()))
        some ^= row
    return rows


Kind = Literal["sbatch", "srun", "immediate"]  # srun: tried at once; immediate: then or never


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
    key: tuple[float, float, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = (-self.spec.priority, self.spec.submit_s, self.spec.number)

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
    node: NodeSet = 0  # the one it asks for; 0: any
    run_s: float = math.inf
    start_s: float | None = None
    at: NodeSet = 0  # where it runs


FIRST_SPAN_S = 30.0
Gap = tuple[float, float, NodeSet]  # free from, until, which nodes


class EarliestStart(NamedTuple):
    """When so many nodes are first free for a whole limit, and all that are then."""

    at_s: float
    nodes: NodeSet


class Timeline:
    """Free gaps in order of their begin; a node may have several."""

    def __init__(
        self, now_s: float, free: NodeSet, ends: Iterable[tuple[float, NodeSet]], slot_s: float
    ) -> None:
        """Begin with nothing planned.

        Args:
            now_s: when the plan is made.
            free: nodes without an ordinary job now.
            ends: of running jobs: when their limit strikes, and their nodes.
            slot_s: bf_resolution.
        """
        self.now_s, self._slot_s = now_s, slot_s
        self._bounds_s: list[float] = []  # of the spans in which ends are one
        self._last_s: list[float] = []  # end in each
        self._gaps: list[Gap] = [(now_s, math.inf, free)]
        ordered = sorted((max(end_s, now_s + 1.0), nodes) for end_s, nodes in ends)
        span_s = FIRST_SPAN_S
        mark_s = ordered[0][0] // FIRST_SPAN_S * FIRST_SPAN_S + FIRST_SPAN_S if ordered else 0.0
        together = 0
        for n, (end_s, nodes) in enumerate(ordered):
            together |= nodes
            is_last = n + 1 == len(ordered)
            if is_last or ordered[n + 1][0] > mark_s + span_s:
                self._bounds_s.append(mark_s + span_s)
                self._last_s.append(end_s)
                self._gaps.append((end_s, math.inf, together))
                together = 0
                while not is_last and ordered[n + 1][0] > mark_s + span_s:
                    span_s *= 2.0

    def advance(self, now_s: float) -> None:
        """Let time pass in which no job started or ended."""
        self.now_s = now_s
        self._gaps = [(max(b, now_s), e, nodes) for b, e, nodes in self._gaps if e > now_s]

    def earliest(self, count: int, limit_s: float, among: NodeSet) -> EarliestStart | None:
        """Return the earliest start of a job on some of these nodes; None: there is none."""
        total, closing = 0, list[tuple[float, int]]()
        for begin_s, end_s, nodes in self._gaps:
            if end_s - begin_s <= limit_s:
                continue
            size = (nodes & among).bit_count()
            if not size:
                continue
            while closing and closing[0][0] <= begin_s:
                total -= heapq.heappop(closing)[1]
            total += size
            if end_s != math.inf:
                heapq.heappush(closing, (end_s - limit_s, size))
            if total >= count:
                return EarliestStart(begin_s, among & _union(self._gaps, begin_s, limit_s))
        return None

    def close(self, start_s: float, end_s: float, nodes: NodeSet) -> None:
        """Plan a job, in slots."""
        begin_s = max(self._slot(start_s), self.now_s)
        self.cut(begin_s, max(self._slot(end_s), begin_s + self._slot_s), nodes)

    def start(self, end_s: float, nodes: NodeSet) -> None:
        """Let a job run from now until its limit."""
        at = min(bisect_right(self._bounds_s, end_s), len(self._last_s) - 1)
        self.cut(self.now_s, max(end_s, self._last_s[at] if at >= 0 else end_s), nodes)

    def cut(self, begin_s: float, end_s: float, nodes: NodeSet) -> None:
        """Take nodes out of all gaps from one moment to another."""
        kept, parts = [], []
        for gap in self._gaps:
            from_s, to_s, some = gap
            part = some & nodes
            if not part or to_s <= begin_s or from_s >= end_s:
                kept.append(gap)
                continue
            if some != part:
                kept.append((from_s, to_s, some ^ part))
            if from_s < begin_s:
                parts.append((from_s, begin_s, part))
            if end_s < to_s:
                parts.append((end_s, to_s, part))
        for gap in parts:
            insort(kept, gap)
        self._gaps = kept

    def open_now(self, limit_s: float) -> NodeSet:
        """Return the nodes that are free now for the whole limit."""
        return _union(self._gaps, self.now_s, limit_s)

    def _slot(self, at_s: float) -> float:
        return at_s if math.isinf(at_s) else math.floor(at_s / self._slot_s) * self._slot_s


def _union(gaps: Iterable[Gap], at_s: float, limit_s: float) -> NodeSet:
    found = 0
    for begin_s, end_s, nodes in gaps:
        if begin_s <= at_s and end_s - limit_s > at_s:
            found |= nodes
    return found


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


PREEMPT_S = 0.1  # from the signal to the start of who preempts (measured, main scheduler)
Action = Callable[[], None]


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
        self.busy: NodeSet = 0  # with ordinary jobs
        self.held: NodeSet = 0  # with preemptable ones
        self.completing: NodeSet = 0  # after preemptable ones, not usable yet
        self.closed: NodeSet = 0  # by maintenance
        self.pending: list[SiteJob] = []
        self.running: dict[int, SiteJob] = {}
        self.jobs: list[SiteJob] = []
        self.preemptable: dict[str, Preemptable] = {}
        self.version = 0  # of everything but the preemptable jobs
        self.n_preempted = 0
        self.neighbour = Neighbour()
        self.scheduler = Scheduler()
        self.events: list[tuple[float, int, Action]] = []  # a heap
        self._turn = itertools.count()
        for reservation in maintenance:
            self.at(reservation.start_s, self._reserve)
            self.at(reservation.end_s, self._reserve)

    # ---- the clock -----------------------------------------------------------------------

    def at(self, at_s: float, action: Action) -> None:
        """Let something happen, not before now; what comes first was asked for first."""
        heapq.heappush(self.events, (max(at_s, self.now_s), next(self._turn), action))

    def run(self, until_s: float) -> None:
        """Let all happen that is due before ``until_s``."""
        events = self.events
        while events and events[0][0] < until_s:
            self.now_s, _, action = heapq.heappop(events)
            action()
        self.now_s = until_s

    # ---- ordinary jobs -------------------------------------------------------------------

    def load(self, specs: tuple[JobSpec, ...]) -> None:
        """Let users submit all these jobs in their time."""
        for spec in specs:
            job = SiteJob(spec=spec)
            self.jobs.append(job)
            self.at(spec.submit_s, partial(self._submit, job))

    def _submit(self, job: SiteJob) -> None:
        self.version += 1
        insort(self.pending, job, key=attrgetter("key"))
        self.neighbour.submitted(job)
        if job.spec.kind == "sbatch":
            self.scheduler.wants_pass(is_end=False)
        else:
            self.scheduler.try_now(job)

    def start(self, job: SiteJob, nodes: NodeSet, *, by_backfill: bool = False) -> None:
        """Start a job on nodes without an ordinary one; preemptable ones there are cancelled."""
        victims = nodes & self.held
        self.preempt(victims)
        self.version += 1
        self.pending.remove(job)
        self.busy |= nodes
        job.start_s = self.now_s + (PREEMPT_S + self.settings.end_cost_s if victims else 0.0)
        job.nodes, job.by_backfill = nodes, by_backfill
        job.planned_s, job.planned = None, 0
        self.running[job.spec.number] = job
        lasts_s = min(job.spec.run_s, job.spec.limit_s)
        self.at(job.start_s + lasts_s, partial(self.end, job))

    def end(self, job: SiteJob) -> None:
        """Let a running job end."""
        if self.running.pop(job.spec.number, None) is None:
            return  # it was ended before its time
        self.version += 1
        self.busy ^= job.nodes
        job.end_s = self.now_s
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
        for one in self.maintenance:
            if one.start_s <= self.now_s < one.end_s:
                self.closed |= one.nodes
        self.version += 1
        self.scheduler.wants_pass(is_end=True)

    def open_for(self, limit_s: float) -> NodeSet:
        """Return the nodes on which a job would be over before a maintenance."""
        found = self.every & ~self.closed
        for one in self.maintenance:
            if self.now_s < one.end_s and self.now_s + limit_s > one.start_s:
                found &= ~one.nodes
        return found

    def room_for(self, job: SiteJob, among: NodeSet) -> NodeSet | None:
        """Return the nodes on which Slurm starts a job, free ones first; None: too few."""
        free = among & ~self.busy & ~self.held & ~self.completing
        missing = job.spec.n_nodes - free.bit_count()
        if missing <= 0:
            return neighbours(free, job.spec.n_nodes)
        victims = among & self.held
        if victims.bit_count() < missing:
            return None
        return free | lowest(victims, missing)

    def timeline(self) -> Timeline:
        """Return what backfill sees with nothing planned."""
        return self.timeline_later()(self.now_s)

    def timeline_later(self) -> Callable[[float], Timeline]:
        """Return a function: what backfill would see at a later time, by what is known now."""
        ends = [(job.ends_by_s, job.nodes) for job in self.running.values()]
        free, slot_s = self.every & ~self.busy, self.settings.bf_resolution_s

        def at(now_s: float) -> Timeline:
            found = Timeline(now_s, free, ends, slot_s)
            for one in self.maintenance:
                if one.end_s > now_s:
                    found.cut(one.start_s, one.end_s, one.nodes)
            return found

        return at

    # ---- preemptable jobs ----------------------------------------------------------------

    def submit_preemptable(self, mine: Preemptable) -> None:
        """Put one into the queue, behind all ordinary jobs."""
        self.preemptable[mine.name] = mine
        self.scheduler.wants_pass(is_end=False)

    def start_waiting(
        self, waiting: Iterable[Preemptable], open_for: Callable[[float], NodeSet]
    ) -> None:
        """Start those that find a free node that is open for their limit."""
        for mine in waiting:
            free = (mine.node or self.every) & ~self.busy & ~self.held & ~self.completing
            if free and (open_ := free & open_for(mine.limit_s)):
                mine.start_s, mine.at = self.now_s, open_ & -open_
                self.held |= mine.at
                end_s = self.now_s + min(mine.run_s, mine.limit_s)
                self.at(end_s, partial(self.cancel_preemptable, mine))
                self.neighbour.started(mine)

    def cancel_preemptable(self, mine: Preemptable) -> None:
        """Take one out of the queue or off its node; one that is gone is no error."""
        if self.preemptable.get(mine.name) is not mine:
            return
        del self.preemptable[mine.name]
        self.held &= ~mine.at
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

    def preempt(self, nodes: NodeSet) -> None:
        """Cancel the preemptable jobs on these nodes."""
        for mine in [p for p in self.preemptable.values() if p.at & nodes] if nodes else ():
            self.n_preempted += 1
            self.cancel_preemptable(mine)


WAITING = 20  # so many are always in the queue
LIMIT_S = 3600.0
SHORTEST_SHARE = 0.2  # of the limit


class PreemptableUsers(Neighbour):
    """Users who always have one-node jobs in the lowest partition; a cancelled one is replaced."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._machine = machine
        self._chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._number = itertools.count(1)

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
        name = f"u{next(self._number):07d}"
        self._machine.submit_preemptable(Preemptable(name=name, limit_s=LIMIT_S, run_s=run_s))
