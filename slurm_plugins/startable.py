"""Which pending jobs Slurm would start if their nodes were free, from what it reports.

A job is entitled if its priority is above 0 and the reason that Slurm gives is none or a lack of
nodes; other reasons vary by release and are not enumerated. Jobs of one poll come in and go out;
called by ``slurm_plugins.snapshot``. Pure. Source: squeue manual page, "JOB REASON CODES", and
job_scheduler.c, node_scheduler.c of 22.05 to 25.05.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from bftrainer.model.cluster import Job, JobState
from slurm_plugins.parse import Made

# Only nodes are missing, or the job was not evaluated yet.
_LACKS_NODES = frozenset({"", "Priority", "Resources"})
_NO_ACCOUNT = "InvalidAccount"
# The same with the scheduler's details: nodes down, reserved or planned for others.
_LACKS_THESE = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")
# True when the scheduler evaluated the job; the same poll shows whether it still is.
_BEGIN, _DEPENDENCY = "BeginTime", "Dependency"
_AFTER_END = re.compile(r"after(?:any|ok|notok|corr|burstbuffer):([0-9]+)")


def judged(
    jobs: Sequence[Job], made: Made[Job] | None = None, *, enforces_accounts: bool = True
) -> tuple[Job, ...]:
    """Return the jobs of a poll; pending ones with whether, and from when, they may start.

    Args:
        jobs: of the poll.
        made: cache of the last poll.
        enforces_accounts: whether a job needs a valid one (AccountingStorageEnforce). Without
            accounting the main scheduler of 23.11 calls every account invalid; backfill starts
            the jobs all the same (measured on 23.11.11).
    """
    lacks_nothing = _LACKS_NODES if enforces_accounts else _LACKS_NODES | {_NO_ACCOUNT}
    made = made or Made()
    made.begin()
    in_queue = frozenset(
        job.counts_as
        for job in jobs
        if job.is_ordinary and job.state in (JobState.PENDING, JobState.RUNNING)
    )
    return tuple(
        [
            _judged(job, in_queue, made, lacks_nothing)
            if job.is_ordinary and job.state is JobState.PENDING
            else job
            for job in jobs
        ]
    )


def _judged(
    job: Job, in_queue: AbstractSet[str], made: Made[Job], lacks_nothing: AbstractSet[str]
) -> Job:
    if job.reason == _BEGIN:
        may_start, begin_s = job.start_s is not None, job.start_s
    else:
        lacks_nodes = job.reason in lacks_nothing or lacks_nodes_only(job.reason)
        may_start, begin_s = lacks_nodes or job.reason == _DEPENDENCY, None
    if may_start and job.priority > 0.0 and not _waits_for_jobs(job, in_queue):
        return job if begin_s is None else dataclasses.replace(job, begin_s=begin_s)
    make = partial(dataclasses.replace, job, is_entitled=False)
    return made.of(job.job_id, job, None, make)


def lacks_nodes_only(reason: str) -> bool:
    """Whether by this reason a job lacks only nodes, or nothing."""
    return reason in _LACKS_NODES or reason.startswith(_LACKS_THESE)


def _waits_for_jobs(job: Job, in_queue: AbstractSet[str]) -> bool:
    """Whether one of its dependencies is not fulfilled.

    The scheduler notices fulfilled ones only at its next pass, so a job that has left the queue
    counts as ended at once. For other conditions (``singleton``) the reason that the scheduler
    gave at its last evaluation counts.
    """
    is_said = job.reason == _DEPENDENCY
    if not job.waits_for:
        return is_said
    waits = []
    for part in re.split(r"[,?]", job.waits_for):
        parent = _AFTER_END.match(part)
        waits.append(is_said if parent is None else parent[1] in in_queue)
    return all(waits) if "?" in job.waits_for else any(waits)
