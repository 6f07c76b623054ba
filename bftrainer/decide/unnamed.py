"""Jobs planned at a time, but on no named nodes → the nodes whose gap they end.

Takes those jobs, the snapshot and the gap ends known so far; returns node → job. Called by
``gaps``. Slurm says a start and no nodes of a job with ``--begin`` and of one whose QOS has
the flag NoReserve (measured on 22.05: SchedNodeList is null).

Such a job can take any node it fits on, so which nodes it bounds is ours to choose, but not
how many: the nodes it asks for, less those that jobs running now leave in time by their
limits. Of the rest those are chosen that bound us least: first the nodes whose gap ends
soonest after the start (they lose least), then those without a pilot, then by name. A node
whose gap ends before the start cannot serve: it is another job's by then. One node serves
one such job: how long the job stays is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from bftrainer.decide.features import meets, ways_of
from bftrainer.decide.requests import base_id
from bftrainer.poll.snapshot import Job, JobState, Node, NodeState, Snapshot

MOST_JOBS = 64  # the earliest; the turn of the others comes when these have started
_FREE = (NodeState.IDLE, NodeState.PLANNED)


class _Span(NamedTuple):
    """A node, and when it is nobody's."""

    node: Node
    from_s: float
    until_s: float


def bound_by_unnamed(
    jobs: Sequence[Job], snapshot: Snapshot, known_s: Mapping[str, float], ours: Collection[str]
) -> dict[str, Job]:
    """Return for each node that such a job ends the use of, which job.

    Args:
        jobs: waiting, with a start and without planned nodes.
        snapshot: complete.
        known_s: node -> when its gap ends for another reason.
        ours: nodes with a pilot, requested or held.
    """
    freed = _freed(snapshot, known_s)
    usable = [
        _Span(n, -math.inf, known_s.get(n.name, math.inf))
        for n in snapshot.nodes or ()
        if n.state in _FREE or n.name in ours
    ]
    usable.sort(key=lambda s: (s.until_s, s.node.name in ours, s.node.name))
    chosen: dict[str, Job] = {}
    for job in _one_of_each_array(jobs)[:MOST_JOBS]:
        missing = job.n_nodes - len(job.required_nodes)
        served, freed = _take(freed, missing, job)
        taken, usable = _take(usable, missing - len(served), job)
        chosen.update(dict.fromkeys([s.node.name for s in taken], job))
        if not usable:
            break
    return chosen


def _take(spans: list[_Span], count: int, job: Job) -> tuple[list[_Span], list[_Span]]:
    """Split off the first ``count`` in which the job can start when it is planned to."""
    taken: list[_Span] = []
    kept: list[_Span] = []
    start_s = job.start_s or 0.0
    for i, span in enumerate(spans):
        if len(taken) >= count:
            return taken, kept + spans[i:]
        serves = span.from_s <= start_s < span.until_s and _fits(job, span.node)
        (taken if serves else kept).append(span)
    return taken, kept


def _freed(snapshot: Snapshot, known_s: Mapping[str, float]) -> list[_Span]:
    """When nodes come free by the limits of the ordinary jobs on them; soonest first.

    Nodes that are planned for somebody are left out: they serve nobody else.
    """
    from_s: dict[str, float] = {}
    for job in snapshot.jobs or ():
        if not job.is_ordinary or job.state is JobState.PENDING:
            continue
        is_open = job.start_s is None or job.time_limit_s is None
        end_s = math.inf if is_open else (job.start_s or 0.0) + (job.time_limit_s or 0.0)
        for name in job.nodes:
            from_s[name] = max(from_s.get(name, 0.0), end_s)
    spans = [
        _Span(n, from_s[n.name], math.inf)
        for n in snapshot.nodes or ()
        if n.name in from_s and n.name not in known_s
    ]
    return sorted(spans, key=lambda s: (s.from_s, s.node.name))


def _one_of_each_array(jobs: Sequence[Job]) -> list[Job]:
    """Earliest first. The tasks of an array show the start of the next of them, all alike."""
    first: dict[tuple[str, float], Job] = {}
    for job in sorted(jobs, key=lambda j: (j.start_s or 0.0, j.job_id)):
        first.setdefault((base_id(job.job_id), job.start_s or 0.0), job)
    return list(first.values())


def _fits(job: Job, node: Node) -> bool:
    if not is_in_partition(job, node) or node.name in job.excluded_nodes:
        return False
    if job.gpus_per_node > node.gpus or job.cpus_per_node > node.cpus:
        return False
    if node.memory_mb and job.memory_mb > node.memory_mb:
        return False
    ways = ways_of(job.features) if node.features else None
    return ways is None or any(meets(node.features, way.everywhere) for way in ways)


def is_in_partition(job: Job, node: Node) -> bool:
    """Whether a job may be on a node by its partition; what is not said allows it."""
    if not (job.partition and node.partitions):
        return True
    return not set(node.partitions).isdisjoint(job.partition.split(","))
