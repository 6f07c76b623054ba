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
    wanted = arguments.values
    whose = wanted.get("u", user)
    if whose not in ("all", job.user):
        return False
    if "q" in wanted and job.queue not in wanted["q"].split():
        return False
    if "P" in wanted and job.project != wanted["P"]:
        return False
    if "m" in wanted and not set(wanted["m"].split()) & set(job.hosts):
        return False
    return "J" not in wanted or _is_named(job, wanted["J"])


def _is_named(job: Job, pattern: str) -> bool:
    plain = job.name.rpartition("[")[0] if job.index else job.name
    if "*" in pattern:
        return any(fnmatch.fnmatchcase(name, pattern) for name in (job.name, plain))
    return pattern in (job.name, plain)


def has_state(job: Job, arguments: Arguments) -> bool:
    """Return whether a job is in a state that bjobs was asked for."""
    flags = arguments.flags
    if "a" in flags:
        return True
    asked = {
        "p": job.is_pending,
        "r": job.state == "RUN",
        "s": job.state in ("USUSP", "SSUSP"),
        "d": job.is_finished,
    }
    if flags & asked.keys():
        return any(is_so for letter, is_so in asked.items() if letter in flags)
    # A zombie is only shown on request, although its processes may still run.
    return not job.is_finished and job.state != "ZOMBI"
