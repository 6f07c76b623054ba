"""Arrays of jobs, written out: every waiting task is a job of its own, as for the scheduler.

``squeue`` shows the waiting tasks of an array as one row, ``12_[1-9%2]``. Jobs come in,
jobs go out; called by ``slurm_plugins.parse``. ``squeue -r`` would write them out, too, but
not say how many may run at once (``%2``). Tasks beyond that get the reason that Slurm
itself gives them when it comes to them.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from bftrainer.hostlist import ParseError
from bftrainer.poll.snapshot import Job, JobState

MOST_TASKS = 5_000
"""Of one array; more than that wait, but none of them starts before the first have."""

_TASKS = re.compile(r"([0-9]+)_\[([0-9,:-]+)(?:%([0-9]{1,9}))?\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")


def written_out(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Replace every array by its tasks."""
    if not any("[" in job.job_id for job in jobs):
        return tuple(jobs)
    started = Counter(
        job.job_id.partition("_")[0] for job in jobs if job.state is not JobState.PENDING
    )
    return tuple(task for job in jobs for task in _tasks(job, started))


def _tasks(job: Job, started: Counter[str]) -> Iterator[Job]:
    if "[" not in job.job_id:
        yield job
        return
    found = _TASKS.fullmatch(job.job_id)
    if found is None:
        raise ParseError(f"not the id of an array: {job.job_id[:80]!r}")
    base, numbers, at_once = found.groups()
    n_may_start = MOST_TASKS
    if at_once is not None and int(at_once) > 0:
        n_may_start = int(at_once) - started[base]
    for position, number in enumerate(_numbers(numbers)):
        if position == MOST_TASKS:
            return
        reason = job.reason if position < n_may_start else "JobArrayTaskLimit"
        yield dataclasses.replace(job, job_id=f"{base}_{number}", reason=reason)


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(",", MOST_TASKS)[:MOST_TASKS]:
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ParseError(f"not the tasks of an array: {text[:80]!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        yield from range(first, last + 1, max(1, int(found[3] or 1)))
