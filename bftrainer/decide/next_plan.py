"""The plan that backfill makes in its next cycle, from what is known by now.

The plan in a look is the last cycle's. Jobs end long before their limits, and each that does
moves the next plan: its nodes go to the head of the queue, which leaves others to those behind.
So who is held to the old plan is refused nodes that backfill finds for it a moment later, by
preemption, and is given nodes back for that backfill then needs for somebody else. Takes the
queue in order, returns the same jobs with the starts and nodes of the new plan; called by
``giveback`` before the queue is judged. Pure.

What Slurm 22.05 does (measured; the parameters are those of slurm.conf(5), SchedulerParameters):
each job in turn gets the earliest start at which enough nodes are free that nobody before it is
planned on while it runs, in slots of ``bf_resolution`` (``slots``). Running jobs are taken to end
by their limits, and those that end close together, within spans that begin with 30 s and double,
to end with the last of them. Jobs that it may preempt are no obstacle. Which nodes: ``row``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from bftrainer.decide.matching import Demand
from bftrainer.decide.nodesets import NodeSet
from bftrainer.decide.requests import Request, Requests
from bftrainer.decide.row import Row, neighbours
from bftrainer.decide.slots import Slots
from bftrainer.poll.snapshot import Job, JobState, Snapshot

FIRST_SPAN_S = 30.0  # within which jobs end together; it doubles from there
MOST_JOBS = 100  # of the queue; behind them the last cycle's plan stands


def replanned(queue: Sequence[Job], snapshot: Snapshot, requests: Requests) -> list[Job]:
    """Give pending jobs the starts and nodes that backfill's next cycle plans for them.

    Where jobs are not planned in slots, the plan is another scheduler's, and stands. So do the
    plans of jobs that share nodes, may choose between nodes, or ask for what we do not
    understand.

    Args:
        queue: pending ordinary jobs, in the order in which the scheduler takes them.
        snapshot: complete.
        requests: of these jobs; their site says which nodes are free, on their way back or
            ours, and when the cycle begins.

    Returns:
        The queue. Who starts in that cycle, or is not planned in it, has no ``start_s``.
    """
    if not snapshot.plan_resolution_s or len(queue) < 2:
        return list(queue)  # of one job nobody is held to the plan
    site = requests.site
    at_s = site.cycle_at_s or site.now_s
    row = Row.of(snapshot.nodes or ())
    cycle = _Cycle(
        at_s=at_s,
        until_s=at_s + (snapshot.plan_window_s or float("inf")),
        free=row.of_set(site.usable, site.sets) | row.clearing,
        ends=_Ends.of(snapshot, row, at_s),
        slots=Slots(at_s, snapshot.plan_resolution_s),
    )
    jobs = []
    for job in queue[:MOST_JOBS]:
        request = requests.of(job)
        if request.cannot:
            jobs.append(job)
        elif (wanted := _plain(request)) is None:
            if job.start_s is not None and job.start_s > at_s:
                cycle.reserve(job.start_s, request.limit_s, row.named(job.planned_nodes))
            jobs.append(job)
        else:
            among = row.of_set(wanted.among, site.sets)
            start_s, nodes = cycle.plan(wanted.count, among, request.limit_s)
            jobs.append(replace(job, start_s=start_s, planned_nodes=row.names(nodes)))
    return [*jobs, *queue[MOST_JOBS:]]


def _plain(request: Request) -> Demand | None:
    """Return what a job asks for if that is whole nodes of one kind."""
    is_plain = len(request.ways) == 1 and len(request.ways[0]) == 1
    if not is_plain or request.doubt or request.shared is not None:
        return None
    return request.ways[0][0]


@dataclass(slots=True)
class _Cycle:
    """One pass of backfill over the queue."""

    at_s: float
    until_s: float  # beyond it nothing is planned
    free: NodeSet  # in it; shrinks as jobs start
    ends: _Ends
    slots: Slots

    def plan(
        self, count: int, among: NodeSet, limit_s: float | None
    ) -> tuple[float | None, NodeSet]:
        """Plan the next job: when and where it starts; ``None, 0``: in this cycle, or never.

        One whose limit nobody knows fits everywhere, and then never ends.
        """
        lasts_s, beyond_s = limit_s or 0.0, limit_s or float("inf")
        from_s: float | None = self.at_s
        while from_s is not None:
            open_, next_s = self.slots.open_during(from_s, max(from_s, self.at_s) + lasts_s, among)
            found = self._earliest(count, open_)
            if found is None:
                from_s = next_s
                continue
            start_s = max(found[0], from_s)
            if self.at_s < start_s and next_s is not None and next_s < start_s:
                from_s = next_s  # on other nodes it may be sooner
                continue
            nodes = neighbours(found[1], count)
            if start_s <= self.at_s:
                self.free &= ~nodes
                self.ends.add(self.at_s + beyond_s, nodes)
                break
            if start_s > self.until_s:
                break
            if self.slots.are_open(start_s, start_s + lasts_s, nodes):
                self.slots.close(start_s, start_s + beyond_s, nodes)
                return start_s, nodes
            from_s = start_s if start_s > from_s else None
        return None, 0

    def reserve(self, start_s: float, limit_s: float | None, nodes: NodeSet) -> None:
        """Keep a plan that is not ours to make."""
        self.slots.close(start_s, start_s + (limit_s or float("inf")), nodes)

    def _earliest(self, count: int, among: NodeSet) -> tuple[float, NodeSet] | None:
        """When so many of these nodes are free, and which are."""
        if (self.free & among).bit_count() >= count:
            return self.at_s, self.free & among
        if among.bit_count() < count:
            return None
        for end_s, ended in self.ends.together(among):
            free = (self.free | ended) & among
            if free.bit_count() >= count:
                return max(end_s, self.at_s + 1.0), free
        return None


@dataclass(slots=True)
class _Ends:
    """When running jobs end by their limits, in order."""

    at_s: list[float] = field(default_factory=list)
    nodes: list[NodeSet] = field(default_factory=list)
    by_then: list[NodeSet] = field(default_factory=list)  # of all up to this one

    @classmethod
    def of(cls, snapshot: Snapshot, row: Row, at_s: float) -> _Ends:
        ends = sorted(
            (max(at_s, job.start_s + job.time_limit_s), row.named(job.nodes))
            for job in snapshot.jobs or ()
            if job.is_ordinary
            and job.state is JobState.RUNNING
            and job.start_s is not None
            and job.time_limit_s is not None
        )
        found = cls([end_s for end_s, _ in ends], [nodes for _, nodes in ends])
        found._sum_from(0)
        return found

    def add(self, end_s: float, nodes: NodeSet) -> None:
        """Note a job that starts; one without a limit never ends."""
        if end_s == float("inf"):
            return
        position = bisect_right(self.at_s, end_s)
        self.at_s.insert(position, end_s)
        self.nodes.insert(position, nodes)
        self._sum_from(position)

    def together(self, among: NodeSet) -> Iterator[tuple[float, NodeSet]]:
        """Go through the ends that matter here, of jobs that end together as one.

        Yields when, and what has ended by then.
        """
        span_s, mark_s, n = FIRST_SPAN_S, 0.0, 0
        while (n := self._next(n, among)) < len(self.at_s):
            mark_s = mark_s or (self.at_s[n] // FIRST_SPAN_S + 1.0) * FIRST_SPAN_S
            beyond = max(n + 1, bisect_right(self.at_s, mark_s + span_s))
            last = next(k for k in range(beyond - 1, -1, -1) if self.nodes[k] & among)
            yield self.at_s[last], self.by_then[last]
            span_s *= 2.0
            while beyond < len(self.at_s) and self.at_s[beyond] > mark_s + span_s:
                span_s *= 2.0
            n = beyond

    def _next(self, n: int, among: NodeSet) -> int:
        while n < len(self.at_s) and not self.nodes[n] & among:
            n += 1
        return n

    def _sum_from(self, position: int) -> None:
        del self.by_then[position:]
        for nodes in self.nodes[position:]:
            self.by_then.append(nodes | (self.by_then[-1] if self.by_then else 0))
