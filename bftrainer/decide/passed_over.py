"""Jobs that had their nodes and did not start: for a while they get no others.

What keeps such a job we do not know; nodes given back for it would lie idle again. A job whose
nodes were free for a whole cycle of the scheduler and that still waits was *served in vain*,
and so was one on whose nodes a pilot was started that had been asked for after that, where
pilots come last: after k times it gets none for 2^k cycles. The tasks of an array share one
memory, and a task that starts or leaves the queue clears it. ``observe`` is an estimator
(``observing``), ``serve`` is called by ``giveback`` when it knows who could start. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bftrainer.decide.cycles import have_passed
from bftrainer.model.cluster import Job
from bftrainer.model.decision import DecisionInput, Memory, PilotView, VainReleases
from bftrainer.queue.shown import taken_nodes
from bftrainer.queue.waiting import pending_jobs

MOST_DOUBLINGS = 5

Known = Mapping[str, VainReleases]  # by ``Job.counts_as``
# A job that could start, and its nodes; None while not all of them are free: a large job whose
# last nodes are still being left has not been passed over.
Served = tuple[Job, tuple[str, ...] | None]


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Count whom a cycle has passed over, and forget who waits no more."""
    if not memory.vain:
        return memory
    snapshot = given.snapshot
    pending = {job.job_id for job in pending_jobs(snapshot)}
    taken = taken_nodes(snapshot)
    asked_s = {p.node: p.requested_s for p in given.pilots if _has_started(p)}
    vain: dict[str, VainReleases] = {}
    for base, known in memory.vain.items():
        one = known if taken.isdisjoint(known.nodes) else replace(known, served_s=None, nodes=())
        if one.job_id not in pending:
            continue
        if one.refused_s is not None:
            count = 1 << min(one.times, MOST_DOUBLINGS)
            if have_passed(count, one.refused_s, memory, snapshot, given.settings):
                one = replace(one, refused_s=None)
        elif one.served_s is not None:
            retaken = any(asked_s.get(node, 0.0) >= one.served_s for node in one.nodes)
            is_over = have_passed(1, one.served_s, memory, snapshot, given.settings)
            if is_over or (retaken and snapshot.pilots_come_last):
                one = VainReleases(job_id=one.job_id, times=one.times + 1, refused_s=given.now_s)
        vain[base] = one
    return replace(memory, vain=vain)


def _has_started(pilot: PilotView) -> bool:
    return (pilot.is_held or pilot.end_s is not None) and not pilot.is_leaving


def why_refused(job: Job, known: Known) -> str:
    """Say why it gets no nodes at the moment; "": it may."""
    one = known.get(job.counts_as)
    if one is None or one.refused_s is None:
        return ""
    return (
        f"It had its nodes for a whole cycle and did not start, {one.times} times: it gets none"
        f" for {1 << min(one.times, MOST_DOUBLINGS)} cycles."
    )


def serve(known: Known, served: Iterable[Served], now_s: float) -> Known:
    """Note who could start at this decision; of a family the first."""
    after: dict[str, VainReleases] = {}
    for job, nodes in served:
        base, job_id = job.counts_as, job.job_id
        if base in after:
            continue
        one = known.get(base, VainReleases(job_id=job_id))
        is_same = one.job_id == job_id and one.served_s is not None
        since_s = one.served_s if is_same else now_s
        after[base] = VainReleases(
            job_id=job_id,
            times=one.times,
            served_s=None if nodes is None else since_s,
            nodes=nodes or (),
            refused_s=one.refused_s,
        )
    for base, one in known.items():
        if base not in after and one.times:
            after[base] = replace(one, served_s=None, nodes=())
    return after
