"""Which pending jobs Slurm would start if their nodes were free: what it says of them, as data.

Not by what keeps a job, of which each release knows more, but by what does not: its
priority is above 0, and the reason that Slurm gives is none or the lack of nodes. Jobs of one
look come in, the same come out; called by ``slurm_plugins.snapshot``. Pure. Source: squeue
manual page, "JOB REASON CODES", and job_scheduler.c, node_scheduler.c of 22.05 to 25.05.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from bftrainer.model.cluster import Job, JobState
from slurm_plugins.again import Made

# Nothing but nodes is missing; or nobody has looked yet.
_LACKS_NODES = frozenset({"", "Priority", "Resources"})
# The same, with what the scheduler adds: nodes that are down, reserved, planned for others.
_LACKS_THESE = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED")
# What was true when the scheduler looked, and we can tell by the same look whether it still is.
_BEGIN, _DEPENDENCY = "BeginTime", "Dependency"
_AFTER_END = re.compile(r"after(?:any|ok|notok|corr|burstbuffer):([0-9]+)")


def judged(jobs: Sequence[Job], made: Made[Job] | None = None) -> tuple[Job, ...]:
    """Return the jobs of a look; pending ones with whether, and from when, they may start.

    ``made``: those of the last look.
    """
    made = made or Made()
    made.begin()
    in_queue = frozenset(
        job.counts_as
        for job in jobs
        if job.is_ordinary and job.state in (JobState.PENDING, JobState.RUNNING)
    )
    return tuple(
        [
            _judged(job, in_queue, made)
            if job.is_ordinary and job.state is JobState.PENDING
            else job
            for job in jobs
        ]
    )


def _judged(job: Job, in_queue: AbstractSet[str], made: Made[Job]) -> Job:
    if job.reason == _BEGIN:
        may_start, begin_s = job.start_s is not None, job.start_s
    else:
        may_start, begin_s = lacks_nodes_only(job.reason) or job.reason == _DEPENDENCY, None
    if may_start and job.priority > 0.0 and not _waits_for_jobs(job, in_queue):
        return job if begin_s is None else dataclasses.replace(job, begin_s=begin_s)
    make = partial(dataclasses.replace, job, is_entitled=False)
    return made.of(job.job_id, job, None, make)


def lacks_nodes_only(reason: str) -> bool:
    """Whether Slurm says with this reason that a job lacks nodes, or nothing."""
    return reason in _LACKS_NODES or reason.startswith(_LACKS_THESE)


def _waits_for_jobs(job: Job, in_queue: AbstractSet[str]) -> bool:
    """Whether one of its dependencies is not fulfilled.

    What was fulfilled a moment ago the scheduler only finds at its next pass, so that the
    end of a job counts as soon as the job has left the queue; of other conditions
    (``singleton``) we know what the scheduler says when it has looked at the job.
    """
    is_said = job.reason == _DEPENDENCY
    if not job.waits_for:
        return is_said
    waits = []
    for part in re.split(r"[,?]", job.waits_for):
        parent = _AFTER_END.match(part)
        waits.append(is_said if parent is None else parent[1] in in_queue)
    return all(waits) if "?" in job.waits_for else any(waits)
