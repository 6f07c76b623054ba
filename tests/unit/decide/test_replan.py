"""The decision when the batch system's plan moves under claims and pilots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.model.cluster import Job, NodeState, Reservation
from bftrainer.model.decision import PilotView, Plan, Settings
from tests.support.snapshots import (
    T0,
    Fold,
    claimed,
    idle_nodes,
    pending,
    pilot,
    record,
    released,
    snapshot,
    with_state,
)

FOUR = idle_nodes(4)
BUSY = with_state(FOUR, NodeState.ALLOCATED, *(n.name for n in FOUR))
PILOTS = [pilot(n.name, end_s=T0 + 4000) for n in FOUR]
BLOCKED = pending("7", 9, limit_s=3600.0)  # waits for more nodes than there are here


def _planned(start_s: float, *nodes: str) -> Job:
    return replace(BLOCKED, start_s=T0 + start_s, planned_nodes=nodes)


def _decide(fold: Fold, job: Job, at_s: float, pilots: list[PilotView] = PILOTS) -> Plan:
    seen = snapshot(BUSY, [job], at_s=T0 + at_s)
    return fold.decide(seen, pilots, [record()], at_s=T0 + at_s)


def test_a_plan_that_comes_earlier_shortens_what_remains_and_then_takes_the_node_back() -> None:
    fold = Fold()
    _decide(fold, BLOCKED, 0.0)
    assert [n.expected_remaining_s for n in fold.policy.problems[-1].nodes] == [4000.0] * 4
    moved = _planned(500.0, "n1", "n2")
    plan = _decide(fold, moved, 1.0)
    ends = {n.name: n.expected_remaining_s for n in fold.policy.problems[-1].nodes}
    assert ends == {"n1": 439.0, "n2": 439.0, "n3": 3999.0, "n4": 3999.0}
    assert plan.releases == ()
    assert not _decide(fold, moved, 439.5).releases
    plan = _decide(fold, moved, 440.0)  # gap_margin_s before the start
    assert released(plan) == {"n1", "n2"}
    assert {r.for_job for r in plan.releases} == {""}
    assert "(job 7)" in plan.releases[0].reason
    assert set(plan.assignment) == {"n3", "n4"}


def test_what_was_given_up_for_a_plan_is_not_asked_for_twice_nor_taken_again() -> None:
    fold = Fold()
    moved = _planned(50.0, "n1")
    assert released(_decide(fold, moved, 0.0)) == {"n1"}
    leaving = [pilot("n1", is_leaving=True), *PILOTS[1:]]
    assert not _decide(fold, moved, 0.5, leaving).releases
    free = with_state(BUSY, NodeState.PLANNED, "n1")
    plan = fold.decide(snapshot(free, [moved]), PILOTS[1:], [record()], at_s=T0 + 2)
    assert (plan.claims, plan.releases) == ((), ())
    assert "(job 7)" in plan.not_used["n1"]


def test_a_plan_that_moves_later_lengthens_nothing_and_a_new_pilot_may_follow() -> None:
    fold = Fold()
    short = [pilot("n1", end_s=T0 + 440), *PILOTS[1:]]
    _decide(fold, _planned(500.0, "n1"), 0.0, short)
    later = _planned(3000.0, "n1")
    _decide(fold, later, 1.0, short)
    first = fold.policy.problems[-1].nodes[0]
    assert (first.name, first.expected_remaining_s) == ("n1", 439.0)
    assert released(_decide(fold, later, 431.0, short)) == {"n1"}  # its limit strikes
    free = with_state(BUSY, NodeState.PLANNED, "n1")
    plan = fold.decide(snapshot(free, [later]), PILOTS[1:], [record()], at_s=T0 + 442)
    assert {c.node: c.time_limit_s for c in plan.claims} == {"n1": 3000 - 60 - 442 - 30}


def test_a_reservation_over_held_nodes_takes_them_back_in_time() -> None:
    fold = Fold()
    maintenance = Reservation(
        name="m", start_s=T0 + 900, end_s=T0 + 9000, nodes=("n2",), is_maintenance=True
    )
    seen = snapshot(BUSY, reservations=[maintenance])
    assert not fold.decide(seen, PILOTS, [record()], at_s=T0 + 839).releases
    plan = fold.decide(seen, PILOTS, [record()], at_s=T0 + 840)
    assert [(r.node, r.reason) for r in plan.releases] == [
        ("n2", "Maintenance m of it begins in 60 s.")
    ]


def test_a_requested_pilot_does_not_wait_for_a_node_that_is_about_to_be_used() -> None:
    fold = Fold()
    nodes = with_state(FOUR, NodeState.PLANNED, "n1", "n2")
    waiting = [pilot("n1", is_held=False), pilot("n2", is_held=False)]
    plan = fold.decide(snapshot(nodes, [_planned(59.0, "n1")]), waiting, [record()])
    assert released(plan) == {"n1"}


def test_our_own_waiting_pilot_may_be_why_its_node_is_planned() -> None:
    nodes = with_state(FOUR, NodeState.PLANNED, "n1")
    jobs = [BLOCKED, replace(pending("9", 1, required=("n1",)), pilot_id="p-n1")]
    plan = Fold().decide(snapshot(nodes, jobs), [pilot("n1", is_held=False)], [record()])
    assert plan.releases == ()
    assert plan.assignment["n1"] == "t1"


@pytest.mark.parametrize(
    ("window_s", "limit_s"), [(None, 14400.0), (86400.0, 14400.0), (7200.0, 7200.0)]
)
def test_no_pilot_lasts_longer_than_the_batch_system_plans(
    window_s: float | None, limit_s: float
) -> None:
    seen = replace(snapshot(FOUR), plan_window_s=window_s)
    plan = Fold().decide(seen, (), [record()])
    assert claimed(plan) == {n.name for n in FOUR}
    assert {c.time_limit_s for c in plan.claims} == {limit_s}


def test_a_plan_before_the_end_of_a_pilot_that_ends_anyway_is_kept_too() -> None:
    """Its own limit would let it stay until 10 s before that."""
    near = [pilot("n1", end_s=T0 + 75), *PILOTS[1:]]
    assert released(_decide(Fold(), _planned(119.0, "n1"), 59.0, near)) == {"n1"}
    assert not _decide(Fold(), _planned(500.0, "n1"), 59.0, near).releases


def test_a_claim_ends_before_the_slot_of_a_planned_start() -> None:
    begin_s = 60.0 * (T0 // 60.0 + 10) - T0  # of a slot
    job = _planned(begin_s + 53.0, "n1")
    for resolution_s, limit_s in ((0.0, begin_s + 53.0 - 90.0), (60.0, begin_s - 90.0)):
        seen = replace(snapshot(FOUR[:1], [job]), plan_resolution_s=resolution_s)
        plan = Fold().decide(seen, [], [record()])
        assert [claim.time_limit_s for claim in plan.claims] == [limit_s]
    # Too short for a claim, long enough to stay.
    soon = _planned(Settings().min_gap_s + 60.0 + 1.0, "n1") if Settings().min_gap_s else job
    seen = replace(snapshot(FOUR[:1], [soon]), plan_resolution_s=3600.0)
    assert Fold().decide(seen, [], [record()]).claims == ()
