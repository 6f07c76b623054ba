"""Detects jobs that the scheduler passed over, and releases nothing for them for a while.

If a job's nodes were free for a whole scheduler cycle and it is still pending, something we cannot
see blocks it; further nodes would idle as well. Where pilots come last, it also counts as passed
over when a pilot requested later started on its nodes. After the k-th time, nothing is released
for it for 2^k cycles. The tasks of an array share one record; it is cleared when a task starts
or leaves the queue. ``observe`` is an estimator (``observation``); ``giveback`` calls ``serve``
when it knows which jobs could start. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bftrainer.decide.cycles import have_passed
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job
from bftrainer.model.decision import DecisionInput, Memory, PilotView, VainReleases

MOST_DOUBLINGS = 5

Known = Mapping[str, VainReleases]  # by ``Job.counts_as``
# A startable job and its nodes; None while some of them are not free yet, because then it cannot
# have been passed over.
Served = tuple[Job, tuple[str, ...] | None]


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Count jobs that a cycle passed over; drop jobs that are no longer pending."""
    if not memory.vain:
        return memory
    snapshot = given.snapshot
    census = census_of(snapshot)
    pending = {job.job_id for job in census.pending_jobs}
    taken = census.taken
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
    """Say why nothing is released for a job at the moment; "": it is not refused."""
    one = known.get(job.counts_as)
    if one is None or one.refused_s is None:
        return ""
    return (
        f"The scheduler passed over it {one.times} times while its nodes were free: none are"
        f" released for it for {1 << min(one.times, MOST_DOUBLINGS)} cycles."
    )


def serve(known: Known, served: Iterable[Served], now_s: float) -> Known:
    """Note which jobs could start at this decision; of a family the first."""
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
