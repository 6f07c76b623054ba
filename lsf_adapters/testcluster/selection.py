"""The jobs that a command selects: by id, user, queue, name, host and state; and their order."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from lsf_adapters.testcluster.arguments import Arguments, JobSpec
from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.state import Job


def in_order(batch: Batch, jobs: Iterable[Job]) -> list[Job]:
    """Return jobs as LSF lists them: started, waiting, ended; by priority of the queue."""
    priority = {name: queue.priority for name, queue in batch.queue_of.items()}

    def rank(job: Job) -> tuple[float, ...]:
        if job.is_finished:
            return (2, job.finish_order)
        first = -priority.get(job.queue, 0)
        if job.is_pending:
            return (1, first, job.id, job.index)
        return (0, first, job.start_s or 0.0, job.id, job.index)

    return sorted(jobs, key=rank)


def of_spec(batch: Batch, spec: JobSpec) -> list[Job]:
    """Return the job with that id, or the elements of the array."""
    alone = batch.jobs.get(str(spec.id))
    if alone is not None:
        return [alone]
    return [
        job
        for job in batch.jobs.values()
        if job.id == spec.id and (not spec.indices or job.index in spec.indices)
    ]


def matches(job: Job, arguments: Arguments, user: str) -> bool:
    """Return whether a job passes the filters of a command; without -u it must be the caller's."""
    filters = arguments.values
    if filters.get("u", user) not in ("all", job.user):
        return False
    if "q" in filters and job.queue not in filters["q"].split():
        return False
    if "P" in filters and job.project != filters["P"]:
        return False
    if "m" in filters and not set(filters["m"].split()) & set(job.hosts):
        return False
    return "J" not in filters or _is_named(job, filters["J"])


def _is_named(job: Job, pattern: str) -> bool:
    names = [job.name]
    if job.index:  # the name of its array will do, too
        array_name, _, _ = job.name.rpartition("[")
        names.append(array_name)
    if "*" in pattern:
        return any(fnmatch.fnmatchcase(name, pattern) for name in names)
    return pattern in names


def has_state(job: Job, arguments: Arguments) -> bool:
    """Return whether a job is in a state that bjobs was asked for."""
    flags = arguments.flags
    if "a" in flags:
        return True
    is_in_state = {
        "p": job.is_pending,
        "r": job.state == "RUN",
        "s": job.state in ("USUSP", "SSUSP"),
        "d": job.is_finished,
    }
    letters = flags & is_in_state.keys()
    if letters:
        return any(is_in_state[letter] for letter in letters)
    # A zombie is only shown on request, although its processes may still run.
    return not job.is_finished and job.state != "ZOMBI"
