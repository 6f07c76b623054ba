"""The state of a simulated Slurm machine and its clock: events in order of time.

The two schedulers (``scheduler``) start ordinary jobs on it; the owner of preemptable jobs is a
``Neighbour``. One ordinary partition and, below it, one whose jobs are cancelled for it
(PreemptMode=CANCEL, by tier). All times are seconds since the begin of the run.
"""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from bftrainer.lab.site.jobs import JobSpec, NodeSet, Preemptable, SiteJob, lowest, neighbours
from bftrainer.lab.site.timeline import Timeline


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
    cycles_s: tuple[float, ...] = ()  # begins of all cycles, where they are known; then no others


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
        job.start_s = self.now_s + (PREEMPT_S if victims else 0.0)
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
        free = among & ~self.busy & ~self.held
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
        mine.submit_s = self.now_s
        self.preemptable[mine.name] = mine
        self.scheduler.wants_pass(is_end=False)

    def start_waiting(
        self, waiting: Iterable[Preemptable], open_for: Callable[[float], NodeSet]
    ) -> None:
        """Start those that find a free node that is open for one of their limits."""
        for mine in waiting:
            free = (mine.node or self.every) & ~self.busy & ~self.held
            for limit_s in mine.limits_s if free else ():
                open_ = free & open_for(limit_s)
                if open_:
                    self._start_preemptable(mine, open_ & -open_, limit_s)
                    break

    def _start_preemptable(self, mine: Preemptable, node: NodeSet, limit_s: float) -> None:
        mine.start_s, mine.at, mine.limit_s = self.now_s, node, limit_s
        self.held |= node
        self.at(self.now_s + min(mine.run_s, limit_s), partial(self.cancel_preemptable, mine))
        self.neighbour.started(mine)

    def cancel_preemptable(self, mine: Preemptable) -> None:
        """Take one out of the queue or off its node; one that is gone is no error."""
        if self.preemptable.get(mine.name) is not mine:
            return
        del self.preemptable[mine.name]
        self.held &= ~mine.at
        self.neighbour.gone(mine)
        if mine.start_s is not None:
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
        self._machine.submit_preemptable(Preemptable(name=name, limits_s=(LIMIT_S,), run_s=run_s))
