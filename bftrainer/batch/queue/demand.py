"""Which ordinary jobs are waiting for nodes, as reported by the adapter. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.batch.queue.occupancy import once_per_look
from bftrainer.model.cluster import Job, JobState, Snapshot


@once_per_look
def pending_jobs(snapshot: Snapshot) -> Sequence[Job]:
    """Return the ordinary jobs that have not started, in snapshot order."""
    pending = JobState.PENDING  # looked up once: a queue may have 10,000 jobs
    return [j for j in snapshot.jobs or () if j.state is pending and j.pilot_id is None]


def why_it_waits(job: Job, now_s: float) -> str:
    """Say why a job cannot start now whatever is free; "": no reason known."""
    if not job.is_entitled:
        what = f" ({job.waits_for})" if job.waits_for else ""
        return f"The batch system does not start it: {job.reason or 'it does not say why'}{what}."
    if job.begin_s is not None and job.begin_s > now_s:
        return "Its begin time has not come."
    return ""


@once_per_look
def waits_for_nodes(snapshot: Snapshot) -> bool:
    """Whether some job might start if it had nodes."""
    return any(not why_it_waits(job, snapshot.taken_at_s) for job in pending_jobs(snapshot))
