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
from bftrainer.model.census import NodeCensus
from bftrainer.model.cluster import Job
from bftrainer.model.decision import DecisionInput, Memory, PilotView, VainReleases

MOST_DOUBLINGS = 5

Known = Mapping[str, VainReleases]  # by ``Job.counts_as``
# A startable job and its nodes; None while some of them are not free yet, because then it cannot
# have been passed over.
Served = tuple[Job, tuple[str, ...] | None]


def observe(memory: Memory, given: DecisionInput, census: NodeCensus) -> Memory:
    """Count jobs that a cycle passed over; drop jobs that are no longer pending."""
    if not memory.vain:
        return memory
    snapshot = given.snapshot
    pending = {job.job_id for job in census.pending_jobs}
    asked_s: dict[str, float] = {}
    for pilot in given.pilots:
        if _has_started(pilot):
            asked_s[pilot.node] = pilot.requested_s
    vain: dict[str, VainReleases] = {}
    for base, before in memory.vain.items():
        record = before
        if not census.taken.isdisjoint(before.nodes):
            record = replace(before, served_s=None, nodes=())
        if record.job_id not in pending:
            continue
        if record.refused_s is not None:
            count = 1 << min(record.times, MOST_DOUBLINGS)
            if have_passed(count, record.refused_s, memory, snapshot, given.settings):
                record = replace(record, refused_s=None)
        elif record.served_s is not None:
            retaken = any(asked_s.get(node, 0.0) >= record.served_s for node in record.nodes)
            is_over = have_passed(1, record.served_s, memory, snapshot, given.settings)
            if is_over or (retaken and snapshot.pilots_come_last):
                record = VainReleases(
                    job_id=record.job_id, times=record.times + 1, refused_s=given.now_s
                )
        vain[base] = record
    return replace(memory, vain=vain)


def _has_started(pilot: PilotView) -> bool:
    return (pilot.is_held or pilot.end_s is not None) and not pilot.is_leaving


def refusals(known: Known) -> dict[str, str]:
    """Say why nothing is released for some jobs at the moment, by ``Job.counts_as``."""
    sentences: dict[str, str] = {}
    for base, record in known.items():
        if record.refused_s is not None:
            sentences[base] = (
                f"The scheduler passed over it {record.times} times while its nodes were free: none"
                f" are released for it for {1 << min(record.times, MOST_DOUBLINGS)} cycles."
            )
    return sentences


def serve(known: Known, served: Iterable[Served], now_s: float) -> Known:
    """Note which jobs could start at this decision; of a family the first."""
    after: dict[str, VainReleases] = {}
    for job, nodes in served:
        base, job_id = job.counts_as, job.job_id
        if base in after:
            continue
        record = known.get(base, VainReleases(job_id=job_id))
        is_same = record.job_id == job_id and record.served_s is not None
        since_s: float | None = now_s
        if is_same:
            since_s = record.served_s
        after[base] = VainReleases(
            job_id=job_id,
            times=record.times,
            served_s=None if nodes is None else since_s,
            nodes=nodes or (),
            refused_s=record.refused_s,
        )
    for base, record in known.items():
        if base not in after and record.times:
            after[base] = replace(record, served_s=None, nodes=())
    return after
