"""The main scheduler and backfill of the simulated site.

A cycle of backfill takes the queue as it is when it begins, works through it in slices (it yields
its locks every two seconds, and others start and end jobs meanwhile), plans each job at its
earliest start, and comes to preemptable jobs last. A cycle that has to preempt for a job cancels
the jobs in the way, and starts it in the next cycle at the earliest (measured). The next cycle
begins ``bf_interval`` after the end of this one.

The main scheduler makes a pass at the tick after ``batch_sched_delay`` for what was submitted, at
an end if the last pass is ``sched_min_interval`` ago (else an agent looks every second whether it
is), and every ``sched_interval`` over the whole queue. The first job that cannot start closes the
partition's nodes to all behind it, in whichever partition, and its partition to all behind it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from bftrainer.lab.site.machine import Machine, Scheduler, SiteJob
from bftrainer.lab.site.occupancy import SiteTimeline
from bftrainer.lab.site.sharing import NodeSet

SLICE_S = 2.5  # bf_yield_interval and bf_yield_sleep
AGENT_S = 1.0  # between two looks of who waits for sched_min_interval
ROUNDING_S = 1e-6  # a time that is later than a tick by less is that tick's
Planned = tuple[float, float, NodeSet]  # start, end by its limit, nodes
Knew = Callable[[], Iterable[SiteJob]]  # who could start, by what was known some time before


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedStart:
    """A job that fitted at the begin of a cycle and had not started by the next."""

    job: SiteJob
    cycle_s: float
    was_preempting: bool  # somebody's preemptable job was in its way
    was_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The moment at which a cycle comes to preemptable jobs, and the plan at that moment."""

    began_s: float
    at_s: float
    planned: tuple[tuple[float, NodeSet], ...]  # begin of the slot, nodes


def knows_nobody() -> Knew:
    """Return nobody's knowledge."""
    return tuple


class Backfill:
    """Cycles over the queue."""

    def __init__(self, machine: Machine, know: Callable[[], Knew] = knows_nobody) -> None:
        """``know`` is asked at the begin of each cycle, and its answer where a job was lost."""
        self._machine, self.know = machine, know
        self._knew: Knew = tuple
        self.n_cycles = 0
        self.n_starts = 0
        self.lost: list[MissedStart] = []
        self.openings: list[Opening] = []
        self.last: tuple[float, float] | None = None  # begin and end of the last whole cycle
        self._began_s = 0.0
        self._queue: list[SiteJob] = []
        self._plans: list[Planned] = []
        self._fitting: list[SiteJob] = []  # at the begin of the cycle
        self._timeline: SiteTimeline | None = None
        self._version = self._planned_version = -1
        for at_s in machine.settings.cycles_s or (machine.settings.first_cycle_s,):
            machine.at(at_s, self._begin)

    def _begin(self) -> None:
        machine, settings = self._machine, self._machine.settings
        self._settle()
        self.n_cycles += 1
        self._began_s = machine.now_s
        self._queue = queue_of(machine)
        depth = max(0, settings.bf_max_job_test - len(self._queue))
        turn = [mine.name for mine in machine.waiting_preemptable[:depth]]
        n_slices = max(1, math.ceil(settings.bf_duration_s / SLICE_S))
        is_old = self._planned_version == machine.version and not any(
            job.planned_s is not None and job.planned_s <= machine.now_s for job in self._queue
        )
        end_s = machine.now_s + settings.bf_duration_s
        self._timeline = None
        if not is_old:
            self._plans = []
            self._knew = self.know()
            if n_slices > 1:  # else who fits starts, or is preempted for
                self._fitting = startable(machine, machine.timeline(), self._queue)
            size = math.ceil(len(self._queue) / n_slices) or 1
            for n in range(n_slices):
                part = self._queue[n * size : (n + 1) * size]
                if part:
                    at_s = machine.now_s + settings.bf_duration_s * n / n_slices
                    machine.at(at_s, partial(self._slice, part))
        self._planned_version = machine.version
        machine.at(end_s, partial(self._end, turn))

    def _settle(self) -> None:
        """Count the jobs that fitted in the last cycle and wait for this one."""
        waits = [j for j in self._fitting if j.start_s is None and not j.is_refused]
        foreseen = set[SiteJob]()
        if waits:  # to know is dear
            foreseen.update(self._knew())
        for job in waits:
            was_preempting = job.preempted_in == self.n_cycles
            self.lost.append(
                MissedStart(
                    job=job,
                    cycle_s=self._began_s,
                    was_preempting=was_preempting,
                    was_known=was_preempting and job in foreseen,
                )
            )
        self._fitting = []

    def _slice(self, jobs: Sequence[SiteJob]) -> None:
        machine = self._machine
        if self._timeline is None or self._version != machine.version:
            self._timeline = self._renew()
        self._timeline.advance(machine.now_s)
        for job in jobs:
            if job.start_s is None and not job.is_refused:
                self._place(job, self._timeline)
        self._version = machine.version  # what was started here is in the timeline

    def _renew(self) -> SiteTimeline:
        timeline = self._machine.timeline()
        for start_s, end_s, nodes in self._plans:
            timeline.close(start_s, end_s, nodes)
        return timeline

    def _place(self, job: SiteJob, timeline: SiteTimeline) -> None:
        machine = self._machine
        now_s, limit_s = timeline.now_s, job.spec.limit_s
        need = machine.need_of(job)
        earliest = timeline.earliest(job.spec.n_nodes, limit_s, machine.nodes_of(job.spec), need)
        job.planned_s, job.planned = None, 0
        if earliest is None or earliest.at_s > now_s + machine.settings.bf_window_s:
            return
        start_s, among = earliest
        nodes = timeline.choose(earliest, job.spec.n_nodes, need)
        if start_s <= now_s:
            room = machine.room_for(job, among)  # None: nodes of it are completing
            if need is not None and (room is None or room.victims):
                # Slurm first tries what is free beside preemptable jobs (_will_run_test).
                free = timeline.open_now(limit_s) & machine.nodes_of(job.spec)
                beside = machine.room_for(job, free)
                if beside is not None and not beside.victims:
                    room = beside
            if room is not None and not room.victims:
                machine.start(job, room, by_backfill=True)
                self.n_starts += 1
                timeline.start(now_s + limit_s, room.nodes, need)
                return
            victims = machine.preemptable_on(nodes)
            if room is not None:
                nodes, victims = room
            machine.preempt(victims)
            job.preempted_in = self.n_cycles
            if job not in self._fitting:
                self._fitting.append(job)
        job.planned_s, job.planned = start_s, nodes
        self._plans.append((start_s, start_s + limit_s, nodes))
        timeline.close(start_s, start_s + limit_s, nodes)

    def _end(self, turn: Sequence[str]) -> None:
        """Come to the preemptable jobs that were in the queue at the begin, then rest."""
        machine, settings = self._machine, self._machine.settings
        slot_s = settings.bf_resolution_s
        plans = tuple((s // slot_s * slot_s, nodes) for s, _, nodes in self._plans)
        self.openings.append(Opening(began_s=self._began_s, at_s=machine.now_s, planned=plans))
        if turn:
            queue = map(machine.preemptable.get, turn)
            waiting = [mine for mine in queue if mine is not None and mine.start_s is None]
            machine.start_waiting(waiting, self._renew().open_now)
        self.last = (self._began_s, machine.now_s)
        if not settings.cycles_s:
            machine.at(machine.now_s + settings.bf_interval_s, self._begin)


def queue_of(machine: Machine) -> list[SiteJob]:
    """Return the jobs that a cycle tests: by priority, the next tasks of each array only."""
    settings, tasks = machine.settings, Counter[int]()
    queue: list[SiteJob] = []
    for job in machine.pending:
        if not job.is_eligible:
            continue
        if len(queue) == settings.bf_max_job_test:
            break
        if job.spec.array:
            tasks[job.spec.array] += 1
            if tasks[job.spec.array] > settings.bf_max_job_array_resv:
                continue
        queue.append(job)
    return queue


def startable(machine: Machine, timeline: SiteTimeline, queue: Iterable[SiteJob]) -> list[SiteJob]:
    """Plan a queue and return the jobs that start at once; preemptable jobs are no obstacle."""
    at_once, now_s = [], timeline.now_s
    for job in queue:
        limit_s, need, n_nodes = job.spec.limit_s, machine.need_of(job), job.spec.n_nodes
        first = timeline.earliest(n_nodes, limit_s, machine.nodes_of(job.spec), need)
        if first is None or first.at_s > now_s + machine.settings.bf_window_s:
            continue
        nodes = timeline.choose(first, n_nodes, need)
        if first.at_s <= now_s:
            at_once.append(job)
            timeline.start(now_s + limit_s, nodes, need)
        else:
            timeline.close(first.at_s, first.at_s + limit_s, nodes)
    return at_once


class BlockedSince(NamedTuple):
    """Whether a job of the queue is blocked, and from when on."""

    at_s: float
    is_blocked: bool


class MainScheduler(Scheduler):
    """Passes over the queue."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._last_s = self._batched_s = -math.inf
        self._due_s = self._batch_due_s = math.inf
        self.waits: list[BlockedSince] = []
        machine.scheduler = self
        machine.at(machine.settings.sched_interval_s, self._whole_queue)

    def resume(self, last_s: float) -> None:
        """Go on from a pass that was made before the begin."""
        self._last_s = self._batched_s = last_s

    def wants_pass(self, *, is_end: bool) -> None:
        """Let a pass come as soon as Slurm makes one."""
        now_s, settings = self._machine.now_s, self._machine.settings
        if is_end:
            self._ask()
            return
        ready_s = max(now_s, self._batched_s + settings.batch_sched_delay_s)
        ticks = math.ceil(ready_s - settings.tick_phase_s - ROUNDING_S)
        due_s = ticks + settings.tick_phase_s
        if due_s < self._batch_due_s:
            self._batch_due_s = due_s
            self._machine.at(due_s, self._batch)

    def _batch(self) -> None:
        if self._machine.now_s < self._batch_due_s:
            return  # a pass over the whole queue has come before
        self._batched_s, self._batch_due_s = self._machine.now_s, math.inf
        self._ask()

    def _ask(self) -> None:
        now_s = self._machine.now_s
        rest_s = self._last_s + self._machine.settings.sched_min_interval_s - now_s
        due_s = now_s
        if rest_s > 0.0:
            due_s += math.ceil(rest_s / AGENT_S) * AGENT_S
        if due_s < self._due_s:
            self._due_s = due_s
            self._machine.at(due_s, self._if_due)

    def try_now(self, job: SiteJob) -> None:
        """Try a job of srun, unless somebody of a higher priority waits.

        One that is immediate finds free nodes, or is refused, though the jobs in its way are gone.
        """
        machine = self._machine
        first: SiteJob | None = None
        for rival in machine.pending:
            if rival.spec.partition == job.spec.partition and rival.is_eligible:
                first = rival
                break
        room = None
        if first is not None and first.spec.priority <= job.spec.priority:
            among = machine.open_for(job.spec.limit_s) & machine.nodes_of(job.spec)
            room = machine.room_for(job, among)
        if job.spec.kind == "immediate" and (room is None or room.victims):
            if room is not None:
                machine.preempt(room.victims)
            machine.refuse(job)
        elif room is not None:
            machine.start(job, room)

    def _if_due(self) -> None:
        if self._machine.now_s >= self._due_s:
            self._pass(self._machine.settings.default_queue_depth)

    def _whole_queue(self) -> None:
        # The background thread makes one or the other (controller.c of 22.05).
        self._batched_s, self._batch_due_s = self._machine.now_s, math.inf
        self._pass(len(self._machine.pending) + 1)
        self._machine.at(
            self._machine.now_s + self._machine.settings.sched_interval_s, self._whole_queue
        )

    def _pass(self, depth: int) -> None:
        machine = self._machine
        self._due_s, self._last_s = math.inf, machine.now_s
        blocked: NodeSet = 0
        blocked_partitions = set[str]()
        for tested, job in enumerate([j for j in machine.pending if j.is_eligible]):
            if tested == depth:
                blocked = machine.every
            nodes = machine.nodes_of(job.spec)
            if job.spec.partition in blocked_partitions or not nodes & ~blocked:
                job.reason = "Priority"
                continue
            room = machine.room_for(job, machine.open_for(job.spec.limit_s) & nodes & ~blocked)
            if room is not None:
                machine.start(job, room)
            else:
                blocked |= nodes
                blocked_partitions.add(job.spec.partition)
                job.reason = "Resources"
        is_blocked = bool(blocked)
        if not self.waits or self.waits[-1].is_blocked is not is_blocked:
            self.waits.append(BlockedSince(machine.now_s, is_blocked))
        if blocked != machine.every:
            machine.start_waiting(
                machine.waiting_preemptable, lambda limit_s: machine.open_for(limit_s) & ~blocked
            )
