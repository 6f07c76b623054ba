"""A pilot that is two jobs: the same node, the same name, two limits. The first that starts is it.

Whether a limit fits a gap turns out in the cycle that plans who comes after it. A pilot
that waits for that cycle with a limit that does not fit waits for the next one as well, and
``--time-min`` gets exactly the minimum even where there is room for more (docs/gaps.md). So
it is submitted a second time, right after the first, with a limit that fits every gap
worth a claim: backfill tries them in this order.

``one_each`` takes the jobs of a snapshot; called by ``snapshot``, which shows one job per pilot
and lets the adapter cancel what is left of it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.poll.snapshot import Job, JobState


def one_each(jobs: Sequence[Job]) -> tuple[tuple[Job, ...], tuple[str, ...]]:
    """Show one job per pilot: the one that has started, else the one submitted first.

    Args:
        jobs: of a snapshot, pilots marked.

    Returns:
        The jobs without the others of a pilot, in the same order; and the ids of those that
        still wait although their pilot has started.
    """
    shown: dict[str, Job] = {}
    for job in jobs:
        if job.pilot_id is not None:
            known = shown.setdefault(job.pilot_id, job)
            shown[job.pilot_id] = min(known, job, key=_rank)
    surplus = [job.job_id for job in jobs if _is_surplus(job, shown)]
    kept = [j for j in jobs if j.pilot_id is None or shown[j.pilot_id].job_id == j.job_id]
    return tuple(kept), tuple(surplus)


def _rank(job: Job) -> tuple[bool, int, str]:
    return job.state is JobState.PENDING, len(job.job_id), job.job_id


def _is_surplus(job: Job, shown: dict[str, Job]) -> bool:
    if job.pilot_id is None or job.state is not JobState.PENDING:
        return False
    return shown[job.pilot_id].state is not JobState.PENDING
