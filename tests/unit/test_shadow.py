"""Who may pass the blocked head of the queue before backfill has planned it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bftrainer.decide.feasible import Answer
from bftrainer.decide.giveback import give_back
from bftrainer.decide.types import Memory, Settings
from bftrainer.poll.snapshot import Job, JobState, NodeState, SchedulerCycle
from tests.support.snapshots import T0, held, node, pending, snapshot

SETTINGS = Settings(reserve_nodes_per_type=0, cycle_s=30.0)
OURS = ("n1", "n2", "n3", "n4")
# n5 and n6 are a job's for another 100 s, n7 for another 1,000 s.
RUNNING = tuple(
    replace(job, state=JobState.RUNNING, start_s=T0 - 10, nodes=nodes)
    for job, nodes in (
        (pending("1", 2, limit_s=110.0), ("n5", "n6")),
        (pending("2", 1, limit_s=1010.0), ("n7",)),
    )
)
HEAD = pending("3", 5, limit_s=600.0)


def can_start(*queue: Job, running: Sequence[Job] = RUNNING, **seen: Any) -> dict[str, bool]:
    names = [*OURS, *(name for job in running for name in job.nodes)]
    looked = snapshot(
        [node(name, NodeState.ALLOCATED) for name in names],
        [replace(job, priority=-float(n)) for n, job in enumerate(queue)] + list(running),
    )
    found = give_back(
        replace(looked, **seen),
        held(*OURS),
        Memory(assignment=dict.fromkeys(OURS, "t1")),
        SETTINGS,
        T0,
        lambda count, candidates, _: sorted(candidates)[:count],
    )
    return {v.job_id: v.answer is not Answer.CANNOT for v in found.verdicts}


@pytest.mark.parametrize(
    ("n_nodes", "limit_s", "expected"),
    [
        (4, 100.0, True),  # over when the head starts, at 100 s
        (1, 101.0, True),  # one of six nodes is left over then
        (2, 101.0, False),
        (4, None, True),  # in doubt
    ],
)
def test_a_later_job_is_over_in_time_or_leaves_enough(
    n_nodes: int, limit_s: float | None, *, expected: bool
) -> None:
    assert can_start(HEAD, pending("4", n_nodes, limit_s=limit_s)) == {"3": False, "4": expected}


@pytest.mark.parametrize(("beyond_s", "expected"), [(0.0, True), (1.0, False)])
def test_the_slot_in_which_the_head_starts_is_its_own(beyond_s: float, *, expected: bool) -> None:
    begin_s = (T0 + 100.0) // 60.0 * 60.0
    later = pending("4", 4, limit_s=begin_s - T0 + beyond_s)
    assert can_start(HEAD, later, plan_resolution_s=60.0) == {"3": False, "4": expected}


def test_what_is_left_over_is_left_once() -> None:
    later = [pending(job_id, 1, limit_s=600.0) for job_id in ("4", "5")]
    assert can_start(HEAD, *later) == {"3": False, "4": True, "5": False}


def test_jobs_before_the_head_end_by_their_limits_too() -> None:
    first = pending("0", 2, limit_s=50.0)  # leaves 2 of ours; at 50 s there are 4, at 100 s 6
    assert can_start(first, HEAD, pending("4", 2, limit_s=101.0))["4"] is False
    assert can_start(first, HEAD, pending("4", 2, limit_s=100.0))["4"] is True


@pytest.mark.parametrize(
    "head",
    [
        replace(HEAD, submit_s=T0 - 61),  # two cycles have not planned it
        replace(HEAD, unclear="contiguous nodes"),
        replace(HEAD, n_nodes=8),  # never
        replace(HEAD, reason="JobHeldUser"),
    ],
)
def test_nobody_is_held_to_a_head_that_will_get_no_plan_or_none_we_know(head: Job) -> None:
    assert can_start(head, pending("4", 2, limit_s=600.0))["4"] is True


def test_nor_to_one_that_a_cycle_has_passed_over_or_that_starts_beyond_the_window() -> None:
    later = pending("4", 2, limit_s=600.0)
    cycle = SchedulerCycle(began_s=T0 + 1, ended_s=T0 + 1)
    assert can_start(HEAD, later, cycle=cycle)["4"] is True
    assert can_start(HEAD, later, plan_window_s=100.0)["4"] is True
    assert can_start(HEAD, later, plan_window_s=101.0)["4"] is False


def test_only_the_first_blocked_job_is_foreseen() -> None:
    """When the second one starts depends on which nodes the first one gets."""
    planned = replace(HEAD, start_s=T0 + 100, planned_nodes=("n1", "n2", "n3", "n5", "n6"))
    second = pending("4", 6, limit_s=600.0)
    later = pending("5", 1, limit_s=600.0)
    assert can_start(planned, second, later) == {"3": False, "4": False, "5": True}


def test_nodes_that_are_being_cleared_are_counted() -> None:
    looked = [node(name, NodeState.ALLOCATED) for name in (*OURS, "n5", "n6", "n7")]
    looked += [node("n8", NodeState.COMPLETING)]
    head = replace(HEAD, n_nodes=6)  # at 100 s there are 7 nodes
    one, two = pending("4", 1, limit_s=600.0), pending("4", 2, limit_s=600.0)
    assert can_start(head, one, nodes=tuple(looked))["4"] is True
    assert can_start(head, two, nodes=tuple(looked))["4"] is False
    # With n8 in a moment the head has what it needs: nobody gets in between.
    assert can_start(HEAD, one, nodes=tuple(looked))["4"] is False


# ---- plans that cannot be kept ---------------------------------------------------------


@pytest.mark.parametrize(
    ("taken_until_s", "starts"),
    [
        (100.0, False),  # as planned: the head has n1 to n5 then
        (101.0, False),  # to the second
        (102.0, True),  # somebody has started on n5 for longer: all is open until it is planned
    ],
)
def test_a_plan_whose_nodes_somebody_has_for_longer_is_none(
    taken_until_s: float, *, starts: bool
) -> None:
    first, *others = RUNNING
    long = replace(first, time_limit_s=taken_until_s + 10.0)
    planned = replace(HEAD, start_s=T0 + 100.0, planned_nodes=(*OURS, "n5"))
    # Fits no gap that ends in 100 s, and the one that ends in 102 s.
    later = pending("4", 4, limit_s=101.5)
    assert can_start(planned, later, running=[long, *others]) == {"3": False, "4": starts}


def test_who_is_not_over_when_the_head_can_be_planned_again_still_waits() -> None:
    planned = replace(HEAD, start_s=T0 + 50.0, planned_nodes=(*OURS, "n5"))
    assert can_start(planned, pending("4", 2, limit_s=101.0)) == {"3": False, "4": False}
    assert can_start(planned, pending("4", 1, limit_s=101.0)) == {"3": False, "4": True}


def test_a_plan_of_which_nothing_is_left_binds_nobody_behind_the_head() -> None:
    """Only the head is certain to be planned first."""
    head = replace(HEAD, start_s=T0 + 100.0, planned_nodes=("n5",), n_nodes=6)
    second = replace(pending("5", 5, limit_s=600.0), start_s=T0 + 50.0, planned_nodes=(*OURS, "n5"))
    later = pending("4", 2, limit_s=101.0)
    assert can_start(head, second, later)["4"]
