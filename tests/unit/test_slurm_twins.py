"""A pilot that is two jobs is shown as one."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.poll.snapshot import Job, JobState
from slurm_plugins.twins import one_each
from tests.support.snapshots import pending, running

ORDINARY = pending("3", 1)


def _pilot(job_id: str, name: str, state: JobState = JobState.PENDING) -> Job:
    job = pending(job_id, 1) if state is JobState.PENDING else running(job_id, "n1")
    return replace(job, pilot_id=name, state=state)


def _ids(jobs: tuple[Job, ...]) -> list[str]:
    return [job.job_id for job in jobs]


def test_the_first_one_while_both_wait() -> None:
    jobs = [ORDINARY, _pilot("10", "p1"), _pilot("9", "p1"), _pilot("11", "p2")]
    shown, surplus = one_each(jobs)
    assert _ids(shown) == ["3", "9", "11"]
    assert surplus == ()


def test_the_one_that_started_and_the_other_is_surplus() -> None:
    for state in (JobState.RUNNING, JobState.COMPLETING):
        jobs = [_pilot("9", "p1"), _pilot("10", "p1", state), ORDINARY]
        shown, surplus = one_each(jobs)
        assert _ids(shown) == ["10", "3"]
        assert surplus == ("9",)


def test_two_that_started_are_no_surplus() -> None:
    """The one ends while the other begins; the batch system knows which has the node."""
    jobs = [_pilot("9", "p1", JobState.COMPLETING), _pilot("10", "p1", JobState.RUNNING)]
    assert one_each(jobs)[1] == ()
