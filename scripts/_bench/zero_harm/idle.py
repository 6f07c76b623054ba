"""Idle nodes of a run, and what an oracle under bftrainer's rules would have held.

A ``Run`` goes in, node-seconds come out. Pure; called by ``report``. The oracle knows
when every idle interval ends and never gives a node back in vain; it is bound only by
the rules that protect ordinary jobs:

* *cycle*: while somebody waits, a node that falls idle is Slurm's until the next backfill
  cycle; with an empty queue it may be taken as soon as Slurm starts an sbatch job; nodes
  that are idle when the run begins are held by then;
* *margin*: not taken when Slurm's plan needs the node sooner than the shortest gap plus the
  margin; it is the plan of the cycle that lets the oracle take the node, whenever bftrainer
  saw it;
* *hold-off*: given back when the job that takes the node next could start there: it is
  submitted and its last node has fallen idle;
* *reserve*: so many idle nodes stay unborrowed at any moment, beside those that a job is
  about to start on at the main scheduler's next tick.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from _bench.zero_harm.runs import JobOutcome, NodeSpan, PlanSeen, Run

READABLE_S = 1.0  # after a cycle began its plan can be read
TICK_S = 2.0  # what starts within that of when it could was not backfill's


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What binds the oracle as it binds the daemon."""

    reserve: int
    shortest_gap_s: float  # min_gap_s plus gap_margin_s
    start_s: float  # what Slurm needs to start an sbatch job that finds free nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """One idle interval of a node and the job that ends it."""

    node: str
    start_s: float
    end_s: float
    next_job: JobOutcome | None = None


def idle_intervals(run: Run) -> tuple[Idle, ...]:
    """Return when nodes had no ordinary job, from the start to the end of the last job."""
    end_s = run.makespan_s
    on_node: dict[str, list[JobOutcome]] = {node: [] for node in run.nodes}
    for job in run.jobs:
        for node in job.nodes:
            on_node[node].append(job)
    found = []
    for node in run.nodes:
        free_s = 0.0
        for job in sorted(on_node[node], key=_start):
            if _start(job) >= free_s:  # of no length: still tells when the node fell idle
                found.append(Idle(node=node, start_s=free_s, end_s=_start(job), next_job=job))
            free_s = max(free_s, end_s if job.ended_s is None else job.ended_s)
        if end_s > free_s:
            found.append(Idle(node=node, start_s=free_s, end_s=end_s))
    return tuple(found)


def idle_node_s(run: Run) -> float:
    """Return how long nodes had no ordinary job, added up."""
    return sum(gap.end_s - gap.start_s for gap in idle_intervals(run))


def oracle_node_s(run: Run, rules: Rules) -> float:
    """Return what the oracle holds."""
    idle = idle_intervals(run)
    waits = _waits(run.jobs)
    planned = _Planned(run.sidecar.plans if run.sidecar else (), run.cycles_s)
    last_idle: dict[int, float] = {}  # job -> when the last of its nodes fell idle
    for gap in idle:
        if gap.next_job is not None:
            number = gap.next_job.number
            last_idle[number] = max(last_idle.get(number, 0.0), gap.start_s)
    usable, unclaimed = [], []
    for gap in idle:
        start_s = 0.0
        if gap.start_s > 0.0:
            start_s = _may_begin(gap.start_s, waits, run.cycles_s, rules.start_s)
        start_s = planned.first_gap(gap.node, start_s, gap.end_s, rules.shortest_gap_s)
        end_s = gap.end_s
        if gap.next_job is not None and gap.next_job.submitted_s is not None:
            could_start_s = max(gap.next_job.submitted_s, last_idle[gap.next_job.number])
            end_s = min(end_s, could_start_s)
        if end_s > start_s:
            usable.append(NodeSpan(node=gap.node, start_s=start_s, end_s=end_s))
        until_s = end_s if gap.end_s - end_s <= TICK_S else gap.end_s
        if until_s > gap.start_s:
            unclaimed.append(NodeSpan(node=gap.node, start_s=gap.start_s, end_s=until_s))
    return _with_reserve(usable, unclaimed, rules.reserve)


def start_delay_s(run: Run) -> float:
    """Return the median time from submission to start of sbatch jobs that found nodes free.

    Of a run without bftrainer: what any job waits for Slurm's own ticks. A job found nodes
    free when as many as it asks for were idle all the while and nobody was waiting.
    """
    idle = idle_intervals(run)
    waits = _waits(run.jobs)
    delays = []
    for job in run.jobs:
        if job.submitted_s is None or job.started_s is None:
            continue
        at_s = job.submitted_s
        free = sum(1 for g in idle if g.start_s <= at_s and g.end_s >= job.started_s)
        alone = not any(from_s < at_s < to_s for from_s, to_s in waits)
        if free >= job.n_nodes and alone and job.started_s - at_s > 0.2:  # srun starts at once
            delays.append(job.started_s - at_s)
    return median(delays) if delays else 1.0


def without(spans: Iterable[NodeSpan], taken: Sequence[NodeSpan]) -> tuple[NodeSpan, ...]:
    """Cut out of spans what lies in ``taken`` on the same node."""
    on_node: dict[str, list[NodeSpan]] = {}
    for span in sorted(taken, key=lambda s: s.start_s):
        on_node.setdefault(span.node, []).append(span)
    left = []
    for span in spans:
        at_s = span.start_s
        for hole in on_node.get(span.node, ()):
            if hole.start_s > at_s and hole.start_s < span.end_s:
                left.append(NodeSpan(node=span.node, start_s=at_s, end_s=hole.start_s))
            if hole.start_s < span.end_s:
                at_s = max(at_s, hole.end_s)
        if span.end_s > at_s:
            left.append(NodeSpan(node=span.node, start_s=at_s, end_s=span.end_s))
    return tuple(left)


def busy_spans(run: Run) -> tuple[NodeSpan, ...]:
    """Return when ordinary jobs had which nodes."""
    return tuple(
        NodeSpan(node=node, start_s=job.started_s, end_s=job.ended_s)
        for job in run.jobs
        for node in job.nodes
        if job.started_s is not None and job.ended_s is not None
    )


def _start(job: JobOutcome) -> float:
    return float("inf") if job.started_s is None else job.started_s


def _waits(jobs: Sequence[JobOutcome]) -> list[tuple[float, float]]:
    """When each job waited."""
    return [
        (job.submitted_s, job.started_s)
        for job in jobs
        if job.submitted_s is not None and job.started_s is not None
    ]


def _may_begin(
    idle_s: float, waits: Sequence[tuple[float, float]], cycles_s: Sequence[float], start_s: float
) -> float:
    """When a pilot on a node that falls idle may start at the earliest."""
    queue_empty_s = idle_s
    for from_s, to_s in sorted(waits):
        if from_s <= queue_empty_s < to_s:
            queue_empty_s = to_s
    at = bisect_left(cycles_s, idle_s)
    next_cycle_s = cycles_s[at] if at < len(cycles_s) else float("inf")
    return min(next_cycle_s, queue_empty_s + start_s)


class _Planned:
    """Slurm's plan as a step function of time."""

    def __init__(self, plans: Sequence[PlanSeen], cycles_s: Sequence[float]) -> None:
        held = _since_cycles(plans, cycles_s)
        self._at_s = [at_s for at_s, _ in held]
        self._starts = [dict(plan.starts_s) for _, plan in held]

    def first_gap(self, node: str, from_s: float, to_s: float, shortest_s: float) -> float:
        """Return the first moment at which the node's gap is long enough; ``to_s``: never."""
        at = bisect_right(self._at_s, from_s) - 1
        moment_s = from_s
        while True:
            planned_s = self._starts[at].get(node) if at >= 0 else None
            if planned_s is None or planned_s - moment_s >= shortest_s:
                return min(moment_s, to_s)
            at += 1
            if at >= len(self._at_s) or self._at_s[at] >= to_s:
                return to_s
            moment_s = self._at_s[at]


def _since_cycles(
    plans: Sequence[PlanSeen], cycles_s: Sequence[float]
) -> list[tuple[float, PlanSeen]]:
    """Return plans and from when they held: the first that shows a cycle's, from its begin.

    A look right after that begin may show either plan: it counts if there is no other.
    """
    held: list[tuple[float, PlanSeen]] = []
    last_s = float("-inf")
    for plan in sorted(plans, key=lambda p: p.at_s):
        at = bisect_right(cycles_s, plan.at_s - READABLE_S) - 1
        began_s = cycles_s[at] if at >= 0 else last_s
        if began_s <= last_s:
            held.append((plan.at_s, plan))
            continue
        while held and held[-1][0] >= began_s:
            held.pop()
        held.append((began_s, plan))
        last_s = began_s
    return held


def _with_reserve(usable: Sequence[NodeSpan], idle: Sequence[NodeSpan], reserve: int) -> float:
    """Add up usable nodes over time, leaving ``reserve`` of the idle ones alone."""
    changes: list[tuple[float, int, int]] = []
    for span in usable:
        changes += [(span.start_s, 1, 0), (span.end_s, -1, 0)]
    for span in idle:
        changes += [(span.start_s, 0, 1), (span.end_s, 0, -1)]
    total, n_usable, n_idle, before_s = 0.0, 0, 0, 0.0
    for at_s, usable_step, idle_step in sorted(changes):
        total += (at_s - before_s) * max(0, min(n_usable, n_idle - reserve))
        n_usable, n_idle, before_s = n_usable + usable_step, n_idle + idle_step, at_s
    return total
