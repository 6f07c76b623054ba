"""Plans pending jobs as the scheduler will in its next backfill cycle.

The printed plan is as old as the last cycle; jobs have ended since. Takes the limits of running
jobs and, in queue order, which jobs start or wait; plans when and where waiting jobs would start.
Conservative backfill: no job delays an earlier one. Source: slurm.conf(5), release 22.05,
"SchedulerParameters". That ends within one span count as simultaneous was measured. Pure.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from bftrainer.decide.queue.matching import Matching
from bftrainer.model.cluster import Job, JobState, Snapshot
from bftrainer.model.node_sets import NodeSet, NodeSets
from bftrainer.model.queue import (
    GapEnd,
    JobNeeds,
    NodeDemand,
    Then,
    slot_begin_s,
)

FIRST_SPAN_S = 30.0  # each further span lasts as long as all before it
MOST_PLANNED = 50  # jobs; for later ones the printed plan is used
Span = tuple[float, float, NodeSet]  # begin, end, nodes
_RUN = re.compile("1+")  # of adjacent nodes


class BackfillPlan:
    """The scheduler's next plan, built job by job in queue order."""

    def __init__(self, snapshot: Snapshot, sets: NodeSets, usable: NodeSet, now_s: float) -> None:
        """Begin with a complete snapshot; ``usable``: nodes that jobs may have now."""
        window_s = snapshot.plan_window_s
        self._sets, self._now_s, self._slot_s = sets, now_s, snapshot.plan_resolution_s
        self._until_s = math.inf
        if window_s is not None:
            self._until_s = now_s + window_s
        self._reserved: list[Span] = []
        ends: list[tuple[float, NodeSet]] = []
        for reservation in snapshot.reservations or ():
            if reservation.end_s > now_s:
                nodes = sets.named(reservation.nodes)
                self._reserved.append((reservation.start_s, reservation.end_s, nodes))
                ends.append((reservation.end_s, nodes))
        for job in snapshot.jobs or ():
            if job.nodes and job.is_ordinary:
                end_s = _must_end_s(job, now_s)
                ends.append((end_s, sets.named(job.nodes)))
        self._free = dict(_coming_free(now_s, usable, _last(ends, usable)))
        self._free_s = list(self._free)
        self._started: list[Span] = []
        self._planned: list[Span] = []
        times_s = set(self._free)
        for _, end_s, _ in self._reserved:
            times_s.add(end_s)
        self._times_s = sorted(times_s)
        del self._times_s[bisect_right(self._times_s, self._until_s) :]
        self._free_at = list(map(self._free_then, self._times_s))
        self._off: dict[float, tuple[int, NodeSet]] = {}  # limit -> (plans counted, nodes)
        self.planned_starts: list[tuple[GapEnd, NodeSet]] = []  # of each planned job
        self.is_full = False  # as many jobs are planned as a decision has time for

    def kept_off(self, limit_s: float | None, *, is_in_reservation: bool) -> NodeSet:
        """Return the nodes on which a job that starts now would delay a planned one.

        Those of plans and, unless the job has a reservation, of reservations. A job without a known
        limit is taken to delay none.
        """
        if limit_s is None:
            return 0
        n_plans, off = self._off.get(limit_s, (0, 0))
        for begin_s, _, nodes in self._planned[n_plans:]:
            if begin_s < self._now_s + limit_s:
                off |= nodes
        self._off[limit_s] = len(self._planned), off
        if is_in_reservation:
            return off
        for begin_s, _, nodes in self._reserved:
            if begin_s < self._now_s + limit_s:
                off |= nodes
        return off

    def start(self, limit_s: float | None, nodes: NodeSet) -> None:
        """Record that a job starts there now, until its limit."""
        self._occupy(self._started, (self._now_s, _end_s(self._now_s, limit_s), nodes))

    def wait(self, job: Job, request: JobNeeds | None) -> None:
        """Plan a job that cannot start now: at its earliest start; if that is unknown, as printed.

        ``request`` None: it waits for more than nodes.
        """
        earliest_start: tuple[float, NodeSet] | None = None
        limit_s = job.time_limit_s
        if request is not None:
            limit_s = request.limit_s
        if request is not None and not self.is_full and not job.reservations:
            for way in request.ways:
                start = self._earliest(way, limit_s)
                if start is not None and (earliest_start is None or start < earliest_start):
                    earliest_start = start
        if earliest_start is None and job.start_s is not None and job.start_s > self._now_s:
            earliest_start = job.start_s, self._sets.named(job.planned_nodes)
        if earliest_start is None:
            return
        start_s, nodes = earliest_start
        slot_s = slot_begin_s(start_s, self._slot_s)
        self._occupy(self._planned, (slot_s, _end_s(start_s, limit_s), nodes))
        end = GapEnd(at_s=start_s, last_end_s=slot_s, then=Then.JOB, by=job.job_id)
        self.planned_starts.append((end, nodes))
        self.is_full = len(self._planned) >= MOST_PLANNED

    def _occupy(self, spans: list[Span], span: Span) -> None:
        begin_s, end_s, nodes = span
        spans.append(span)
        for i in range(bisect_left(self._times_s, begin_s), bisect_left(self._times_s, end_s)):
            self._free_at[i] &= ~nodes
        if end_s < self._until_s:
            i = bisect_right(self._times_s, end_s)
            self._times_s.insert(i, end_s)
            self._free_at.insert(i, self._free_then(end_s))

    def _free_then(self, at_s: float) -> NodeSet:
        """Return the nodes that are free at a time, for however short."""
        free = self._free[self._free_s[bisect_right(self._free_s, at_s) - 1]]
        for spans in (self._reserved, self._started, self._planned):
            for begin_s, end_s, nodes in spans:
                if begin_s <= at_s < end_s:
                    free &= ~nodes
        return free

    def _earliest(
        self, way: Sequence[NodeDemand], limit_s: float | None
    ) -> tuple[float, NodeSet] | None:
        """Return the earliest start within the window, and the nodes; None: there is none."""
        among, count = 0, 0
        for demand in way:
            among |= demand.among
            count += demand.count
        for at_s, free in zip(self._times_s, self._free_at, strict=True):
            room = among & free
            if room.bit_count() < count:
                continue
            until_s = at_s + (limit_s or 0.0)
            for spans in (self._reserved, self._started, self._planned):
                for begin_s, _, nodes in spans:
                    if at_s < begin_s < until_s:
                        room &= ~nodes
            if room.bit_count() >= count and (nodes := _chosen(way, room)):
                return at_s, nodes
        return None


def _end_s(start_s: float, limit_s: float | None) -> float:
    if limit_s is None:
        return math.inf
    return start_s + limit_s


def _must_end_s(job: Job, now_s: float) -> float:
    """Return when a running job ends at the latest by its limit; inf: unknown."""
    if job.state is JobState.COMPLETING:
        return now_s
    if job.start_s and job.time_limit_s:
        return job.start_s + job.time_limit_s
    return math.inf


def _coming_free(
    now_s: float, usable: NodeSet, ends: Iterable[tuple[float, NodeSet]]
) -> Iterator[tuple[float, NodeSet]]:
    """Yield which nodes are free from when; all ends within a span count as the last one."""
    at_s, free, mark_s, bound_s = now_s, usable, 0.0, -math.inf
    for end_s, nodes in sorted(ends):
        if end_s > bound_s:
            yield at_s, free
            if math.isinf(bound_s):
                mark_s = end_s // FIRST_SPAN_S * FIRST_SPAN_S + FIRST_SPAN_S
                bound_s = mark_s + FIRST_SPAN_S
            while end_s > bound_s:
                bound_s += bound_s - mark_s
        free |= nodes
        at_s = max(end_s, now_s + 1.0)
    yield at_s, free


def _last(
    ends: Iterable[tuple[float, NodeSet]], usable: NodeSet
) -> Iterator[tuple[float, NodeSet]]:
    """Yield which nodes come free when the last job or reservation on them has ended."""
    covered = usable
    for end_s, nodes in sorted(ends, reverse=True):
        if nodes & ~covered and end_s < math.inf:
            yield end_s, nodes & ~covered
        covered |= nodes


def _chosen(way: Sequence[NodeDemand], room: NodeSet) -> NodeSet:
    """Choose the nodes of a job; 0: too few for some demand."""
    if len(way) == 1:
        return neighbours(room, way[0].count)
    matching = Matching(room)
    if matching.try_add(way):
        return room & ~matching.unused
    return 0


def neighbours(nodes: NodeSet, count: int) -> NodeSet:
    """Choose as Slurm does: the shortest sufficient run of adjacent nodes, else longest first."""
    # Digits, because each operation on a set of many nodes costs its length, and a search for the
    # next run in the set itself takes six of them.
    digits = format(nodes, "b")[::-1]
    runs = sorted([(run.end() - run.start(), run.start()) for run in _RUN.finditer(digits)])
    selection = 0
    while count > 0 and runs:
        greatest_length, _ = runs[-1]
        longest = bisect_left(runs, (greatest_length, -1))  # the first of the longest runs
        length, begin = runs.pop(min(bisect_left(runs, (count, -1)), longest))
        selection |= ((1 << min(length, count)) - 1) << begin
        count -= length
    return selection
