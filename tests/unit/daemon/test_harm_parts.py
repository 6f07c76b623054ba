"""Hand-overs of parts of nodes: which job got which part, where several share a host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.daemon.harm.ledger import HarmRecords, How, Why
from bftrainer.model import canonical
from bftrainer.model.cluster import EndedBy, Job, JobState
from bftrainer.model.reports import PartCounts
from tests.support.part_story import (
    CPUS,
    CYCLE_S,
    PartStory,
    a_part,
    asking,
    host,
    of_part,
    pilot_job,
    runs,
)
from tests.support.snapshots import T0

A, B, C = a_part("n1/0"), a_part("n1/1"), a_part("n1/2")
PARTS = (A, B, C)
JOBS = tuple(map(pilot_job, PARTS))
VIEWS = tuple(map(of_part, PARTS))
FULL = [host()]  # an ordinary job has the fourth GPU
THEIRS = runs(asking("5", 1), start_s=-500.0)


@pytest.fixture
def story() -> PartStory:
    """Three pilots with a GPU each."""
    told = PartStory()
    told.look(0.0, FULL, [*JOBS, THEIRS], VIEWS)
    return told


def released(story: PartStory, for_jobs: dict[str, str], *waiting: object) -> None:
    """Parts go at 10.05 s, within 0.06 s."""
    story.look(10.0, FULL, [*JOBS, THEIRS, *waiting], VIEWS, releases=for_jobs)  # type: ignore[list-item]
    for name in for_jobs:
        story.says(name, "told", 10.07, 10.11)


def preempted(story: PartStory, *names: str) -> None:
    for name in names:
        story.says(name, "signal", 10.0, 10.03)


# ---- who got it -------------------------------------------------------------------------


def test_a_job_takes_two_of_three_parts_and_the_third_is_in_vain(story: PartStory) -> None:
    job = asking("7", 2)
    released(story, dict.fromkeys(("n1/0", "n1/1", "n1/2"), "7"), job)
    story.look(11.0, [host(free=1)], [THEIRS, runs(job, start_s=10.0)], [])
    assert story.got == {"n1/0": "7", "n1/1": "7"}
    (vain,) = story.vain
    assert (vain.node, vain.job_id, vain.why) == ("n1/2", "7", Why.STARTED_ELSEWHERE)
    assert (vain.gpus, vain.gpu_type) == (1, "gpu:a100")
    for done in story.hand_overs:
        assert (done.how, done.asked_for, done.gpus, done.gpu_type) == (
            How.GIVEN_BACK, "7", 1, "gpu:a100",
        )  # fmt: skip
        assert done.delay_s == pytest.approx(0.06)


def test_an_unrelated_job_that_needs_no_gpu_takes_nothing(story: PartStory) -> None:
    """CPUs were free for it; the job that the part was released for starts later."""
    story.look(5.0, [host(cpus=8)], [*JOBS, THEIRS], VIEWS)
    job, other = asking("7", 1), asking("8", 0, cpus=4)
    nodes = [host(cpus=8)]
    story.look(10.0, nodes, [*JOBS, THEIRS, job, other], VIEWS, releases={"n1/0": "7"})
    story.says("n1/0", "told", 10.07, 10.11)
    rest, views = JOBS[1:], VIEWS[1:]
    started = runs(other, start_s=10.0)
    story.look(11.0, [host(free=1)], [*rest, THEIRS, started, job], views, held_off=["n1/0"])
    assert not story.records
    jobs = [*rest, THEIRS, started, runs(job, start_s=12.0)]
    story.look(13.0, FULL, jobs, views)
    assert story.got == {"n1/0": "7"}


def test_a_job_without_gpus_whose_request_nobody_saw_takes_nothing(story: PartStory) -> None:
    preempted(story, "n1/0")
    stranger = replace(runs(asking("8", 0), start_s=10.0), submit_s=T0 + 10.0)
    story.look(11.0, [host(free=1)], [*JOBS[1:], THEIRS, stranger], VIEWS[1:])
    assert not story.records


def test_a_job_that_nobody_saw_pending_has_what_the_host_has_less(story: PartStory) -> None:
    """It asked with --gpus, which squeue does not show of running jobs."""
    preempted(story, "n1/0", "n1/1")
    stranger = replace(runs(asking("8", 0), start_s=10.0), submit_s=T0 + 10.0)
    story.look(11.0, [host(free=0, cpus=4)], [*JOBS[2:], THEIRS, stranger], VIEWS[2:])
    assert story.got == {"n1/0": "8", "n1/1": "8"}


def test_a_job_that_fits_into_what_was_free_takes_nothing() -> None:
    story = PartStory()
    story.look(0.0, [host(free=1)], JOBS, VIEWS)
    first, second = asking("7", 1), asking("8", 1)
    story.look(10.0, [host(free=1)], [*JOBS, first, second], VIEWS, releases={"n1/0": "8"})
    story.says("n1/0", "told", 10.07, 10.11)
    jobs = [*JOBS[1:], runs(first, start_s=10.0), second]
    story.look(11.0, [host(free=1)], jobs, VIEWS[1:], held_off=["n1/0"])
    assert not story.records
    jobs = [*JOBS[1:], runs(first, start_s=10.0), runs(second, start_s=12.0)]
    story.look(13.0, FULL, jobs, VIEWS[1:])
    assert story.got == {"n1/0": "8"}


def test_what_an_ordinary_job_leaves_is_no_part_of_ours(story: PartStory) -> None:
    """The job with the fourth GPU ends, another gets it; the given-back part is for a third."""
    first, second = asking("7", 1), asking("8", 1)
    released(story, {"n1/0": "8"}, second)
    jobs = [*JOBS[1:], runs(first, start_s=10.0), second]
    story.look(11.0, [host(free=1)], jobs, VIEWS[1:], held_off=["n1/0"])
    assert not story.records
    jobs = [*JOBS[1:], runs(first, start_s=10.0), runs(second, start_s=12.0)]
    story.look(13.0, FULL, jobs, VIEWS[1:])
    assert story.got == {"n1/0": "8"}


def test_a_preempted_part_is_of_the_job_that_starts_in_its_second(story: PartStory) -> None:
    """As on a real Slurm: an ordinary job ended in the same moment, and what it left waits.

    The later job waits for the first one's end, not for a pilot, and loses no cycle of ours.
    """
    preempted(story, "n1/0")
    first, second = asking("7", 1), asking("8", 2)
    jobs = [*JOBS[1:], runs(first, start_s=10.0), second]
    story.look(11.0, [host(free=1)], jobs, VIEWS[1:])
    assert story.got == {"n1/0": "7"}
    jobs = [*JOBS[1:], runs(second, start_s=10.0 + 2.0 * CYCLE_S)]
    story.look(11.0 + 2.0 * CYCLE_S, FULL, jobs, VIEWS[1:])
    assert [done.cycle_lost_s for done in story.hand_overs] == [0.0]


def test_a_job_that_had_room_at_once_leaves_a_later_preemption_to_another(
    story: PartStory,
) -> None:
    """It started two seconds before the signal."""
    preempted(story, "n1/0")
    first = runs(asking("7", 1), start_s=8.0)
    story.look(11.0, [host(free=1)], [*JOBS[1:], first], VIEWS[1:])
    assert not story.records
    second = runs(asking("8", 1), start_s=12.0)
    story.look(13.0, FULL, [*JOBS[1:], first, second], VIEWS[1:])
    assert story.got == {"n1/0": "8"}


def test_a_pilot_that_ended_by_itself_leaves_its_gpu_to_anybody(story: PartStory) -> None:
    story.says("n1/1", "lease", 9.0, 9.1)
    preempted(story, "n1/0")
    first = runs(asking("7", 1), start_s=10.0)
    story.look(11.0, [host(free=1)], [JOBS[2], THEIRS, first], VIEWS[2:])
    assert not story.records
    second = runs(asking("8", 1), start_s=12.0)
    story.look(13.0, FULL, [JOBS[2], THEIRS, first, second], VIEWS[2:])
    assert story.got == {"n1/0": "8"}


def test_what_a_pilot_of_ours_took_meanwhile_was_not_free() -> None:
    story = PartStory()
    story.look(0.0, [host(free=1)], JOBS, VIEWS)
    fourth = a_part("n1/3")
    preempted(story, "n1/0")
    jobs = [*JOBS[1:], pilot_job(fourth), runs(asking("7", 1), start_s=10.0)]
    story.look(11.0, FULL, jobs, [*VIEWS[1:], of_part(fourth)])
    assert story.got == {"n1/0": "7"}


@pytest.mark.parametrize("is_shown", [True, False], ids=["at once", "later"])
def test_what_a_completing_pilot_has_is_nobodys_yet(story: PartStory, is_shown: bool) -> None:
    """Slurm shows its GPU as free at once; a look may have read the node just before that."""
    job = asking("7", 1)
    released(story, {"n1/0": "7"}, job)
    completing = replace(JOBS[0], state=JobState.COMPLETING)
    shown = [host(free=1)] if is_shown else FULL
    story.look(11.0, shown, [completing, *JOBS[1:], THEIRS, job], VIEWS)
    assert not story.records
    story.look(13.0, FULL, [*JOBS[1:], THEIRS, runs(job, start_s=12.0)], VIEWS[1:])
    assert story.got == {"n1/0": "7"}


@pytest.mark.parametrize("is_shown", [True, False], ids=["at once", "later"])
def test_what_a_completing_job_leaves_is_counted_once(story: PartStory, is_shown: bool) -> None:
    """Two jobs start after it: one has its GPU, the other that of a pilot."""
    completing = replace(THEIRS, state=JobState.COMPLETING)
    shown = [host(free=1)] if is_shown else FULL
    first, second = asking("7", 1, cpus=0), asking("8", 1, cpus=0)
    story.look(9.0, shown, [*JOBS, completing, first, second], VIEWS)
    story.look(10.0, shown, [*JOBS, completing, first, second], VIEWS, releases={"n1/0": "8"})
    story.says("n1/0", "told", 10.07, 10.11)
    jobs = [*JOBS[1:], runs(first, start_s=11.0), runs(second, start_s=11.0)]
    story.look(13.0, FULL, jobs, VIEWS[1:])
    assert story.got == {"n1/0": "8"}


def test_what_a_host_does_not_show_is_reckoned() -> None:
    """A GPU was free when it was last read; the first job has it, the second our part."""
    story = PartStory()
    story.look(0.0, [host(free=1)], JOBS, VIEWS)
    unread = [replace(host(), lends=(), left=None)]
    story.look(5.0, unread, JOBS, VIEWS)
    preempted(story, "n1/0")
    first = runs(asking("7", 1), start_s=10.0)
    story.look(11.0, unread, [*JOBS[1:], first], VIEWS[1:])
    assert not story.records
    second = runs(asking("8", 1), start_s=12.0)
    story.look(13.0, unread, [*JOBS[1:], first, second], VIEWS[1:])
    assert story.got == {"n1/0": "8"}


def test_each_job_gets_first_what_was_released_for_it(story: PartStory) -> None:
    """The earlier start does not decide."""
    early, late = asking("8", 1), asking("7", 1)
    released(story, {"n1/0": "7", "n1/1": "8"}, early, late)
    jobs = [JOBS[2], THEIRS, runs(early, start_s=10.0), runs(late, start_s=11.0)]
    story.look(12.0, FULL, jobs, VIEWS[2:])
    assert story.got == {"n1/0": "7", "n1/1": "8"}
    assert all(done.asked_for == done.job_id for done in story.hand_overs)


def test_a_released_part_that_another_job_takes_is_a_hand_over_to_that(story: PartStory) -> None:
    waits, other = asking("7", 1), asking("8", 1)
    released(story, {"n1/0": "7"}, waits, other)
    jobs = [*JOBS[1:], THEIRS, runs(other, start_s=10.0), waits]
    story.look(11.0, FULL, jobs, VIEWS[1:])
    (done,) = story.hand_overs
    assert (done.job_id, done.asked_for, done.how) == ("8", "7", How.GIVEN_BACK)
    assert not story.vain


def test_a_preempted_part_goes_before_one_that_is_for_another_job(story: PartStory) -> None:
    waits, other = asking("7", 1), asking("8", 1)
    released(story, {"n1/0": "7"}, waits, other)
    story.says("n1/1", "signal", 10.5, 10.53)
    jobs = [JOBS[2], THEIRS, runs(other, start_s=10.0), waits]
    story.look(11.0, [host(free=1)], jobs, VIEWS[2:], held_off=["n1/0"])
    assert story.got == {"n1/1": "8"}
    story.look(13.0, FULL, [*jobs[:3], runs(waits, start_s=12.0)], VIEWS[2:])
    assert story.got == {"n1/1": "8", "n1/0": "7"}
    assert [done.how for done in story.hand_overs] == [How.PREEMPTED, How.GIVEN_BACK]


def test_a_job_that_started_before_the_end_began_is_no_taker(story: PartStory) -> None:
    """Neither if it came to the host long before, nor a moment."""
    recent = runs(asking("8", 1), start_s=8.0)
    story.look(9.0, FULL, [*JOBS, recent], VIEWS)  # the ordinary job's GPU
    preempted(story, "n1/0")
    story.look(11.0, [host(free=1)], [*JOBS[1:], recent], VIEWS[1:])
    assert not story.records
    assert story.ledger.ends.keys() == {"p-n1/0"}


def test_a_silent_end_is_no_hand_over_to_a_job_that_ran_beside_the_pilot(story: PartStory) -> None:
    story.look(11.0, [host(free=1)], [*JOBS[1:], THEIRS], VIEWS[1:])
    assert story.ledger.ends.keys() == {"p-n1/0"}
    assert not story.records
    late = asking("8", 1)
    story.look(12.0, FULL, [*JOBS[1:], THEIRS, runs(late, start_s=11.0)], VIEWS[1:])
    (done,) = story.hand_overs
    assert (done.job_id, done.how, done.asked_s) == ("8", How.PREEMPTED, None)


def test_one_part_of_four_gpus_serves_two_jobs_and_is_handed_over_once() -> None:
    whole = a_part("n1/0", 4)
    story = PartStory()
    story.look(0.0, FULL, [pilot_job(whole)], [of_part(whole)])
    preempted(story, "n1/0")
    jobs = [runs(asking("7", 2), start_s=10.0), runs(asking("8", 2), start_s=10.0)]
    story.look(11.0, FULL, jobs, [])
    (done,) = story.hand_overs
    assert (done.job_id, done.gpus) == ("7", 4)
    story.look(12.0, FULL, jobs, [])
    assert story.ledger.hosts.by_name == {}


def test_gpus_of_another_type_are_not_what_a_job_took() -> None:
    mig = replace(C, gpu_type="gpu:1g.10gb", gpus=1)
    story = PartStory()
    nodes = [host(others={"1g.10gb": 0})]
    views = [of_part(A), of_part(mig)]
    story.look(0.0, nodes, [pilot_job(A), pilot_job(mig)], views)
    preempted(story, "n1/0", "n1/2")
    job = replace(asking("7", 1), gpu_type="1g.10gb")
    story.look(11.0, [host(free=1, others={"1g.10gb": 0})], [runs(job, start_s=10.0)], [])
    assert story.got == {"n1/2": "7"}
    assert story.ledger.ends.keys() == {"p-n1/0"}


def test_a_job_that_lacks_cores_alone_takes_parts_for_them(story: PartStory) -> None:
    """The host has 4 cores left; the job without GPUs asks for 20."""
    story.look(5.0, [host(cpus=4)], [*JOBS, THEIRS], VIEWS)
    job = asking("7", 0, cpus=CPUS + 4)
    nodes = [host(cpus=4)]
    story.look(10.0, nodes, [*JOBS, THEIRS, job], VIEWS, releases={"n1/0": "7"})
    story.says("n1/0", "told", 10.07, 10.11)
    story.look(11.0, FULL, [*JOBS[1:], THEIRS, runs(job, start_s=10.0)], VIEWS[1:])
    assert story.got == {"n1/0": "7"}


def test_an_exclusive_job_takes_all_parts_of_its_host() -> None:
    story = PartStory()
    story.look(0.0, [host(free=1)], JOBS, VIEWS)
    job = replace(asking("7", 0, cpus=1), can_share=False)
    story.look(5.0, [host(free=1)], [*JOBS, job], VIEWS)
    preempted(story, "n1/0", "n1/1", "n1/2")
    story.look(11.0, FULL, [runs(job, start_s=10.0)], [])
    assert set(story.got) == {"n1/0", "n1/1", "n1/2"}


def test_a_wide_job_takes_parts_of_each_of_its_hosts() -> None:
    here, there = a_part("n1/0", 2), a_part("n2/0", 2)
    nodes = [host("n1"), host("n2")]
    story = PartStory()
    jobs = [pilot_job(here), pilot_job(there)]
    job = asking("7", 2, n_nodes=2)
    views = [of_part(here), of_part(there)]
    story.look(0.0, nodes, jobs, views)
    story.look(10.0, nodes, [*jobs, job], views, releases={"n1/0": "7", "n2/0": "7"})
    for name in ("n1/0", "n2/0"):
        story.says(name, "told", 10.07, 10.11)
    story.look(11.0, nodes, [runs(job, "n1", "n2", start_s=10.0)], [])
    assert story.got == {"n1/0": "7", "n2/0": "7"}
    assert (story.report.hand_overs, story.report.jobs) == (2, 1)


def test_a_part_whose_pilot_a_later_look_shows_gone_is_handed_over_then(story: PartStory) -> None:
    job = asking("7", 2)
    released(story, {"n1/0": "7", "n1/1": "7"}, job)
    completing = pilot_job(B, JobState.COMPLETING)
    started = runs(job, start_s=10.0)
    views = [of_part(B, is_held=False, is_leaving=True), VIEWS[2]]
    story.look(11.0, FULL, [completing, JOBS[2], THEIRS, started], views)
    assert story.got == {"n1/0": "7"}
    story.look(12.0, FULL, [JOBS[2], THEIRS, started], VIEWS[2:])
    assert story.got == {"n1/0": "7", "n1/1": "7"}
    assert not story.vain


# ---- nobody got it ----------------------------------------------------------------------


def test_a_job_that_starts_on_another_host(story: PartStory) -> None:
    job = asking("7", 1)
    released(story, {"n1/0": "7"}, job)
    nodes = [host(free=1), host("n2")]
    story.look(11.0, nodes, [*JOBS[1:], THEIRS, runs(job, "n2", start_s=10.0)], VIEWS[1:])
    (vain,) = story.vain
    assert (vain.node, vain.why, vain.gpus) == ("n1/0", Why.STARTED_ELSEWHERE, 1)


def test_a_job_that_does_not_start_or_leaves_the_queue(story: PartStory) -> None:
    stays, goes = asking("7", 1), asking("8", 1)
    released(story, {"n1/0": "7", "n1/1": "8"}, stays, goes)
    jobs = [JOBS[2], THEIRS, stays]
    story.look(13.0, [host(free=2)], jobs, VIEWS[2:], held_off=["n1/0", "n1/1"])
    story.look(45.0, [host(free=2)], jobs, VIEWS[2:])
    assert {one.node: one.why for one in story.vain} == {
        "n1/1": Why.LEFT_THE_QUEUE,
        "n1/0": Why.DID_NOT_START,
    }
    found = story.report
    assert (found.in_vain, found.share_in_vain) == (2, 1.0)


def _announced(job: Job) -> Job:
    """The job as the hook told of it."""
    return replace(
        job, job_id="announced-1", reason="", cpus_per_node=0, submit_s=T0 + 10.0, can_share=False
    )


def test_an_announced_job_is_one_job_of_the_queue(story: PartStory) -> None:
    """Its user submitted another within the same second, which goes on to wait."""
    job, other = (replace(asking(name, n), submit_s=T0 + 10.0) for name, n in (("7", 1), ("8", 2)))
    released(story, {"n1/0": "announced-1"}, _announced(job))
    rest = [*JOBS[1:], THEIRS, other]
    story.look(11.0, [host(free=1)], [*rest, job], VIEWS[1:], held_off=["n1/0"])
    nodes = [host(free=1), host("n2")]
    story.look(14.0, nodes, [*rest, runs(job, "n2", start_s=13.0)], VIEWS[1:])
    (vain,) = story.vain
    assert (vain.job_id, vain.why) == ("7", Why.STARTED_ELSEWHERE)


def test_an_announced_job_needs_what_the_queue_says(story: PartStory) -> None:
    """A GPU without a core was free for it: what it lacked was the pilot's cores."""
    job = replace(asking("7", 1), submit_s=T0 + 10.0)
    story.look(9.0, [host(free=1, cpus=0)], [*JOBS, THEIRS], VIEWS)
    nodes = [host(free=1, cpus=0)]
    story.look(10.0, nodes, [*JOBS, _announced(job)], VIEWS, releases={"n1/0": "announced-1"})
    story.says("n1/0", "told", 10.07, 10.11)
    nodes = [host(free=2, cpus=CPUS)]
    story.look(11.0, nodes, [*JOBS[1:], job], VIEWS[1:], held_off=["n1/0"])
    story.look(14.0, [host(free=1, cpus=0)], [*JOBS[1:], runs(job, start_s=13.0)], VIEWS[1:])
    assert story.got == {"n1/0": "7"}


def test_a_part_that_was_cancelled_or_that_no_job_took(story: PartStory) -> None:
    preempted(story, "n1/0", "n1/1")
    story.was("n1/0", EndedBy.CANCELLED)
    nodes, jobs = [host(free=2)], [JOBS[2], THEIRS]
    story.look(11.0, nodes, jobs, VIEWS[2:])
    story.look(12.0 + 2 * CYCLE_S, nodes, jobs, VIEWS[2:])
    assert {one.node: (one.by, one.gpus) for one in story.taken} == {
        "n1/0": (EndedBy.CANCELLED, 1),
        "n1/1": (EndedBy.UNKNOWN, 1),
    }


def test_a_part_that_is_released_for_nobody_is_dropped(story: PartStory) -> None:
    released(story, {"n1/0": ""})
    nodes, jobs = [host(free=1)], [*JOBS[1:], THEIRS]
    story.look(11.0, nodes, jobs, VIEWS[1:])
    story.look(12.0 + CYCLE_S, nodes, jobs, VIEWS[1:])
    assert not story.records
    assert story.ledger.ends == {}
    later = runs(asking("8", 1), start_s=60.0)
    story.look(61.0, FULL, [*jobs, later], VIEWS[1:])
    assert not story.records


# ---- cycles lost ------------------------------------------------------------------------


def test_a_preemption_by_backfill_costs_a_cycle_and_breaks_the_promise(story: PartStory) -> None:
    """A blocked job is at the head; the job behind it can start by backfill alone.

    Its two parts are free after 0.03 s, and it starts in the next cycle: that is the figure.
    """
    blocked = replace(asking("6", 4, n_nodes=3), priority=9.0)
    job = asking("7", 2)
    story.look(5.0, FULL, [*JOBS, THEIRS, blocked, job], VIEWS)
    preempted(story, "n1/0", "n1/1")
    for name in ("n1/0", "n1/1"):
        story.was(name, EndedBy.PREEMPTED)
    story.look(11.0, [host(free=2)], [JOBS[2], THEIRS, blocked, job], VIEWS[2:])
    jobs = [JOBS[2], THEIRS, blocked, runs(job, start_s=40.0)]
    story.look(41.0, FULL, jobs, VIEWS[2:])
    found = story.report
    assert (found.hand_overs, found.preempted, found.preempted_jobs) == (2, 2, 1)
    assert (found.cycles_lost, found.cycles_lost_s) == (1, CYCLE_S)
    assert found.lost_cycles[0].nodes == ("n1/0", "n1/1")
    assert (found.median_s, found.share_within, found.is_kept) == (CYCLE_S, 0.0, False)


def test_a_part_preempted_for_a_job_that_got_another_too_late(story: PartStory) -> None:
    """As with whole nodes; a job that wants no such GPU is not the one."""
    job, cpu_job = asking("7", 1), replace(asking("6", 0, cpus=2), priority=9.0)
    waiting = [*JOBS, THEIRS, job, cpu_job]
    story.look(10.0, FULL, waiting, VIEWS, releases={"n1/1": "7", "n1/2": "6"})
    story.says("n1/0", "signal", 9.9, 9.93)
    story.says("n1/1", "told", 10.07, 10.11)
    story.look(11.0, [host("n1", free=2), host("n2")], [JOBS[2], THEIRS, job, cpu_job], VIEWS[2:],
               held_off=["n1/1", "n1/2"])  # fmt: skip
    started = [runs(job, "n2", start_s=40.0), runs(cpu_job, "n2", start_s=39.0)]
    story.look(41.0, [host("n1", free=2), host("n2")], [JOBS[2], THEIRS, *started], VIEWS[2:])
    assert story.got == {"n1/0": "7"}
    assert story.report.cycles_lost == 1


# ---- as journalled ----------------------------------------------------------------------


def test_gpus_are_written_of_parts_alone(story: PartStory) -> None:
    job = asking("7", 1)
    released(story, {"n1/0": "7"}, job)
    story.look(11.0, FULL, [*JOBS[1:], THEIRS, runs(job, start_s=10.0)], VIEWS[1:])
    (settled,) = story.records
    assert canonical.decode(canonical.encode(settled), HarmRecords) == settled
    (done,) = settled.hand_overs
    of_whole = canonical.to_plain(replace(done, gpus=0, gpu_type=""))
    assert isinstance(of_whole, dict)
    assert not {"gpus", "gpu_type"} & of_whole.keys()


# ---- the report -------------------------------------------------------------------------


def test_the_report_tells_parts_by_node_and_gpu(story: PartStory) -> None:
    mig = a_part("n2/0", 2, "gpu:1g.10gb")
    job, other = asking("7", 1), replace(asking("8", 2), gpu_type="1g.10gb")
    nodes = [host("n1"), host("n2", others={"1g.10gb": 0})]
    views = [*VIEWS, of_part(mig)]
    jobs = [*JOBS, pilot_job(mig), THEIRS, job, other]
    story.look(10.0, nodes, jobs, views, releases={"n1/0": "7", "n1/1": "7", "n2/0": "8"})
    for name in ("n1/0", "n1/1"):
        story.says(name, "told", 10.07, 10.11)
    story.says("n2/0", "signal", 10.0, 14.0)
    started = [runs(job, start_s=10.0), runs(other, "n2", start_s=14.0)]
    nodes = [host("n1", free=1), host("n2", others={"1g.10gb": 0})]
    story.look(15.0, nodes, [JOBS[2], THEIRS, *started], VIEWS[2:])
    found = story.report
    assert (found.hand_overs, found.gpus, found.in_vain, found.share_in_vain) == (2, 3, 1, 0.5)
    of_a100 = PartCounts(
        node="", gpu_type="gpu:a100", hand_overs=1, gpus=1, given_back=1, in_vain=1
    )
    of_mig = PartCounts(node="", gpu_type="gpu:1g.10gb", hand_overs=1, gpus=2, preempted=1, late=1)
    assert found.by_gpu == (of_mig, of_a100)
    assert found.by_node == (replace(of_mig, node="n2"), replace(of_a100, node="n1"))
    assert [(case.node, case.gpus, case.gpu_type) for case in found.worst] == [
        ("n2/0", 2, "gpu:1g.10gb"),
        ("n1/0", 1, "gpu:a100"),
    ]
