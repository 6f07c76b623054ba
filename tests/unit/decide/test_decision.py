"""The decision as a fold: what is claimed, released and kept, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from bftrainer.decide.claims import A_BIT_S, LEAST_S, MOST_S
from bftrainer.model import canonical
from bftrainer.model.cluster import NodeState, Reservation, Snapshot
from bftrainer.model.decision import DecisionInput, Memory, Plan, Settings
from tests.support.effort import effort_s
from tests.support.snapshots import (
    SOURCES,
    T0,
    Fold,
    claimed,
    held,
    idle_nodes,
    node,
    node_names,
    pending,
    pilot,
    record,
    released,
    running,
    snapshot,
    with_state,
    without,
)

EIGHT = idle_nodes(8)
BUSY = with_state(EIGHT, NodeState.ALLOCATED, *(n.name for n in EIGHT))


# ---- claims ----------------------------------------------------------------------------


def test_idle_nodes_are_claimed_for_the_trainer_that_gets_them() -> None:
    plan = Fold().decide(snapshot(idle_nodes(3)), trainers=[record(n_max=2)])
    assert len(plan.assignment) == 2
    assert {c.node: c.for_trainer for c in plan.claims} == plan.assignment
    assert all(c.time_limit_s == Settings().pilot_time_limit_s for c in plan.claims)
    assert plan.releases == ()


def test_without_trainers_nothing_is_claimed() -> None:
    plan = Fold().decide(snapshot(idle_nodes(3)))
    assert (plan.claims, plan.assignment, plan.allocation) == ((), {}, None)


def test_without_nodes_nothing_is_allocated() -> None:
    plan = Fold().decide(snapshot(BUSY), trainers=[record()])
    assert (plan.claims, plan.assignment, plan.allocation) == ((), {}, None)


def test_two_confirmations_need_two_snapshots() -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=0, idle_confirmations=2))
    seen = snapshot(idle_nodes(2))
    assert not fold.decide(seen, trainers=[record()]).claims
    assert not fold.decide(seen, trainers=[record()], is_new=False).claims  # the same look
    flicker = snapshot(with_state(idle_nodes(2), NodeState.ALLOCATED, "n1"))
    assert claimed(fold.decide(flicker, trainers=[record()])) == {"n2"}
    assert not claimed(fold.decide(seen, [pilot("n2", is_held=False)], [record()]))
    assert claimed(fold.decide(seen, [pilot("n2", is_held=False)], [record()])) == {"n1"}


def test_the_time_limit_fits_the_gap() -> None:
    nodes = with_state(idle_nodes(3), NodeState.PLANNED, "n1", "n2")
    jobs = [
        pending("7", 9, start_s=T0 + 1000, planned=("n1",)),
        pending("8", 9, start_s=T0 + 170, planned=("n2",)),
    ]
    maintenance = Reservation(name="m", start_s=T0 + 500, end_s=T0 + 900, nodes=("n3",))
    plan = Fold().decide(snapshot(nodes, jobs, reservations=[maintenance]), trainers=[record()])
    # Less the cycle of 30 s that they wait for, because jobs wait.
    assert {c.node: c.time_limit_s for c in plan.claims} == {"n1": 910.0, "n3": 410.0}
    assert "n2" in plan.not_used


def test_the_policy_sees_fcfs_order_present_nodes_and_the_limits() -> None:
    settings = Settings(reserve_nodes_per_type=0, p_jmax=1, t_fwd_s=77.0)
    fold = Fold(settings=settings, memory=Memory(assignment={"n1": "t10", "n9": "t10"}))
    trainers = [record("t10"), record("t9", n_min=2), record("t2")]
    pilots = [pilot("n1", end_s=T0 + 3600)]
    seen = snapshot(with_state(idle_nodes(2), NodeState.ALLOCATED, "n1"))
    plan = fold.decide(seen, pilots, trainers, training={"n1": "t10"})
    problem = fold.policy.problems[-1]
    assert [t.trainer_id for t in problem.trainers] == ["t10", "t9", "t2"]
    assert [t.current for t in problem.trainers] == [("n1",), (), ()]  # n9 is gone
    assert (problem.p_jmax, problem.t_fwd_s) == (1, 77.0)
    assert [(n.name, n.expected_remaining_s) for n in problem.nodes] == [
        ("n1", 3600.0),
        ("n2", None),
    ]
    assert set(plan.assignment.values()) == {"t10"}


def test_bounds_of_trainers_hold() -> None:
    trainers = [
        record("t1", n_min=4, n_max=5),
        record("t2", n_min=2, n_max=2),
        record("t3", n_min=4),
    ]
    plan = Fold().decide(snapshot(EIGHT), trainers=trainers)
    sizes = Counter(plan.assignment.values())
    for trainer in trainers:
        size = sizes[trainer.trainer_id]
        assert size == 0 or trainer.spec.n_min <= size <= trainer.spec.n_max


# ---- unknown -----------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["nodes", "jobs"])
def test_unknown_claims_and_releases_nothing_and_keeps_the_assignment(source: str) -> None:
    fold = Fold()
    pilots = held("n1", "n2")
    fold.decide(snapshot(BUSY), pilots, [record()])
    before = fold.memory
    assert set(before.assignment) == {"n1", "n2"}
    blind = without(snapshot(idle_nodes(8), [pending("7", 4)]), source)
    plan = fold.decide(blind, pilots, [record()], at_s=T0 + 1e6)
    assert (plan.claims, plan.releases) == ((), ())
    assert plan.assignment == before.assignment
    assert fold.memory == before
    assert fold.policy.problems[1:] == []


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_cannot_be_read_stops_claims_but_no_give_back(source: str) -> None:
    before = snapshot(BUSY, [pending("7", 2)])
    now = snapshot(with_state(EIGHT, NodeState.ALLOCATED, *node_names(7)), [pending("7", 2)])
    fold, trainers = Fold(), [record(n_min=1)]
    assert claimed(fold.decide(now, held("n1", "n2", "n3"), trainers)) == set()  # 7 has n8
    seen = without(now, source).with_last_known(before)
    plan = Fold().decide(seen, held("n1", "n2", "n3"), trainers)
    assert len(released(plan)) == (2 if source == "nodes" else 1)  # n8 is not known to be idle
    free = without(snapshot(EIGHT), source).with_last_known(snapshot(EIGHT))
    assert not claimed(Fold().decide(free, (), trainers))
    assert claimed(Fold().decide(snapshot(EIGHT), (), trainers))


# ---- two cycles on the same input ----------------------------------------------------------


def test_the_same_input_again_asks_for_nothing_more() -> None:
    fold = Fold(settings=Settings())
    trainers = [record("t1", n_max=4), record("t2", n_min=2)]
    seen = snapshot(EIGHT)
    first = fold.decide(seen, trainers=trainers)
    assert len(first.claims) == 7  # one is the reserve
    requested = [pilot(c.node, is_held=False) for c in first.claims]
    second = fold.decide(seen, requested, trainers)
    assert (second.claims, second.releases) == ((), ())
    assert second.assignment == first.assignment
    busy = snapshot(with_state(EIGHT, NodeState.ALLOCATED, *claimed(first)))
    all_held = [pilot(n, end_s=T0 + 9000) for n in sorted(claimed(first))]
    for at_s in (T0 + 1, T0 + 2, T0 + 50):
        later = fold.decide(busy, all_held, trainers, at_s=at_s)
        assert (later.claims, later.releases) == ((), ())
        assert later.assignment == first.assignment


def test_the_same_input_gives_the_same_plan() -> None:
    trainers = [record("t1", n_max=3), record("t2", n_min=2)]
    plans = [Fold().decide(snapshot(EIGHT, [pending("7", 2)]), (), trainers) for _ in range(2)]
    assert canonical.encode(plans[0]) == canonical.encode(plans[1])


def test_input_and_plan_can_be_written_down_and_read_again() -> None:
    fold = Fold(settings=Settings())
    fold.decide(snapshot(BUSY), held("n1", "n2", "n3"), [record()])
    given = DecisionInput(
        now_s=T0 + 1,
        snapshot=snapshot(with_state(EIGHT, NodeState.ALLOCATED, "n1", "n2"), [pending("7", 8)]),
        is_new_snapshot=True,
        pilots=held("n1", "n2"),
        trainers=(record(), record("t2")),
        settings=fold.settings,
        memory=fold.memory,
    )
    assert canonical.decode(canonical.encode(given), DecisionInput) == given
    plan = fold.decide(given.snapshot, given.pilots, given.trainers, at_s=given.now_s)
    assert plan.releases
    assert plan.memory.vain
    assert canonical.decode(canonical.encode(plan), Plan) == plan


# ---- give-back -----------------------------------------------------------------------------


def test_what_is_given_back_is_held_off_and_not_assigned() -> None:
    fold = Fold()
    pilots = held(*node_names(8))
    fold.decide(snapshot(BUSY), pilots, [record()])
    plan = fold.decide(snapshot(BUSY, [pending("7", 3)]), pilots, [record()], at_s=T0 + 1)
    assert len(plan.releases) == 3
    assert {r.for_job for r in plan.releases} == {"7"}
    assert not released(plan) & set(plan.assignment)
    assert set(plan.memory.held_off) == released(plan)
    assert plan.claims == ()


def test_the_whole_give_back_from_arrival_to_return() -> None:
    fold = Fold()
    gone = ("n1", "n2")
    rest = held(*node_names(8)[2:])
    fold.decide(snapshot(BUSY), held(*node_names(8)), [record()])
    job = pending("7", 2, submit_s=T0 + 1)
    plan = fold.decide(snapshot(BUSY, [job]), held(*node_names(8)), [record()], at_s=T0 + 1)
    assert released(plan) == set(gone)
    # The pilots leave; nothing is asked for a second time, whatever the nodes show.
    leaving = [*rest, *(pilot(n, is_leaving=True) for n in gone)]
    for state in (NodeState.ALLOCATED, NodeState.COMPLETING):
        seen = snapshot(with_state(BUSY, state, *gone), [job])
        assert not fold.decide(seen, leaving, [record()], at_s=T0 + 1.2).releases
        assert not fold.decide(seen, rest, [record()], at_s=T0 + 1.4).releases
    # They are free: not ours before a cycle has ended.
    free = with_state(BUSY, NodeState.IDLE, *gone)
    plan = fold.decide(snapshot(free, [job], cycle_ended_s=T0 - 5), rest, [record()], at_s=T0 + 5)
    assert (plan.claims, plan.releases) == ((), ())
    # The job did not start, and a cycle has ended: they are claimed again ...
    after = snapshot(free, [job], cycle_ended_s=T0 + 25, at_s=T0 + 26)
    plan = fold.decide(after, rest, [record()], at_s=T0 + 26)
    assert claimed(plan) == set(gone)
    # ... and the job gets none for two cycles.
    again = [*rest, *(pilot(n, is_held=False, requested_s=T0 + 26) for n in gone)]
    for ended_s, is_served in ((T0 + 25, False), (T0 + 55, False), (T0 + 85, True)):
        later = snapshot(free, [job], cycle_ended_s=ended_s, at_s=ended_s + 2)
        plan = fold.decide(later, again, [record()], at_s=ended_s + 2)
        assert released(plan) == (set(gone) if is_served else set())
        assert plan.claims == ()


def test_nodes_are_taken_back_at_once_when_the_job_is_gone() -> None:
    fold = Fold()
    fold.decide(snapshot(BUSY), held("n1"), [record()])
    fold.decide(snapshot(BUSY, [pending("7", 1)]), held("n1"), [record()], at_s=T0 + 1)
    free = with_state(BUSY, NodeState.IDLE, "n1")
    assert claimed(fold.decide(snapshot(free), (), [record()], at_s=T0 + 2)) == {"n1"}


def test_unassigned_nodes_go_first_then_those_of_large_trainers_then_those_that_park() -> None:
    fold = Fold(
        memory=Memory(assignment={"n1": "t1", "n2": "t2", "n3": "t2", "n4": "t2", "n5": "t3"}),
    )
    trainers = [record("t1", n_min=1), record("t2", n_min=1), record("t3", n_min=1)]
    busy = with_state(idle_nodes(6), NodeState.ALLOCATED, *node_names(6))
    jobs = [pending("7", 4)]
    plan = fold.decide(snapshot(busy, jobs), held(*node_names(6)), trainers)
    assert released(plan) == {"n6", "n2", "n3", "n4"}


def test_a_pilot_is_released_once_however_many_reasons_there_are() -> None:
    pilots = [pilot("n1", end_s=T0 + 5)]  # at its end, and wanted by a job
    seen = snapshot(with_state(idle_nodes(1), NodeState.ALLOCATED, "n1"), [pending("7", 1)])
    plan = Fold().decide(seen, pilots, [record()])
    assert [(r.pilot_id, r.for_job) for r in plan.releases] == [("p-n1", "7")]


def test_a_node_that_vanishes_ends_nothing() -> None:
    fold = Fold()
    fold.decide(snapshot(BUSY), held("n1", "n2"), [record()])
    pilots = [pilot("n1"), pilot("n2", is_leaving=True)]
    seen = snapshot(idle_nodes(8)[2:], [pending("7", 3)])
    plan = fold.decide(seen, pilots, [record()], at_s=T0 + 1)
    assert plan.releases == ()
    assert not {"n1", "n2"} & set(plan.assignment)


# ---- nodes that must be left -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "is_released"),
    [
        (NodeState.DRAINED, True),
        (NodeState.RESERVED, True),
        (NodeState.DOWN, False),
        (NodeState.UNKNOWN, False),
    ],
)
def test_lost_nodes_are_left(state: NodeState, *, is_released: bool) -> None:
    fold = Fold()
    fold.decide(snapshot(BUSY), held("n1", "n2"), [record()])
    seen = snapshot(with_state(BUSY, state, "n1"))
    plan = fold.decide(seen, held("n1", "n2"), [record()], at_s=T0 + 1)
    assert released(plan) == ({"n1"} if is_released else set())
    assert ("n1" in plan.assignment) is (state in {NodeState.UNKNOWN, NodeState.DOWN})
    leaving = [pilot("n1", is_leaving=True), pilot("n2")]
    assert not fold.decide(seen, leaving, [record()], at_s=T0 + 1.1).releases


def test_a_pilot_near_its_end_first_loses_its_trainer_then_goes() -> None:
    fold = Fold()
    pilots = [pilot("n1", end_s=T0 + 100), pilot("n2")]
    seen = snapshot(BUSY)
    assert set(fold.decide(seen, pilots, [record()], at_s=T0 + 79).assignment) == {"n1", "n2"}
    plan = fold.decide(seen, pilots, [record()], at_s=T0 + 81)
    assert (set(plan.assignment), plan.releases) == ({"n2"}, ())
    plan = fold.decide(seen, pilots, [record()], at_s=T0 + 91)
    assert [(r.node, r.for_job) for r in plan.releases] == [("n1", "")]
    assert "time limit" in plan.releases[0].reason


def _waits(fold: Fold, at_s: float, ended_s: float | None, requested_s: float = 0.0) -> set[str]:
    """What is released of a pilot that waits; the last cycle ended then."""
    seen = snapshot(
        idle_nodes(1), at_s=T0 + at_s, cycle_ended_s=None if ended_s is None else T0 + ended_s
    )
    waiting = [pilot("n1", is_held=False, requested_s=T0 + requested_s)]
    return released(fold.decide(seen, waiting, [record()], at_s=T0 + at_s))


def test_a_pilot_is_given_up_when_two_cycles_have_passed_over_it() -> None:
    fold = Fold()
    for at_s, ended_s in ((1.0, -5.0), (100.0, 90.0), (200.0, 90.0)):
        assert _waits(fold, at_s, ended_s) == set()
    assert _waits(fold, 300.0, 290.0) == {"n1"}


def test_quick_cycles_give_a_pilot_time_to_be_submitted() -> None:
    fold = Fold()
    for at_s in (2.0, 3.0, 4.0, A_BIT_S):
        assert _waits(fold, at_s, at_s - 0.1) == set()
    assert _waits(fold, A_BIT_S + 1.0, A_BIT_S + 0.9) == {"n1"}


def test_where_no_cycles_are_told_a_pilot_has_twice_their_length_and_a_bit() -> None:
    fold = Fold()
    late_s = 2 * fold.settings.cycle_s + A_BIT_S
    assert _waits(fold, late_s, None) == set()
    assert _waits(fold, late_s + 1.0, None) == {"n1"}


def _comes(fold: Fold, name: str, after_s: float) -> bool:
    """Let a pilot start, and its agent come so long after; whether it was given up before."""
    begin_s, nodes = fold.now_s, (node(name, NodeState.ALLOCATED),)
    starts = pilot(name, is_held=False, requested_s=begin_s, end_s=begin_s + 3600.0)
    for at_s in (begin_s, begin_s + after_s - 0.1):
        seen = snapshot(nodes, at_s=at_s)
        if released(fold.decide(seen, [starts], [record()], at_s=at_s)):
            return True
    there = [pilot(name, end_s=begin_s + 3600.0)]
    fold.decide(snapshot(nodes), there, [record()], at_s=begin_s + after_s)
    return False


def test_how_long_agents_take_to_come_is_learnt() -> None:
    fold = Fold()
    assert not _comes(fold, "a", 1.0)
    assert [_comes(fold, f"b{k}", 200.0) for k in range(4)] == [True, True, False, False]
    assert not _comes(fold, "c", 599.0)  # three times what was seen last
    assert not _comes(fold, "d", 5.0)
    assert _comes(fold, "e", LEAST_S + 1.0)  # what was seen last was quick
    for k in range(9):
        assert _comes(fold, f"f{k}", MOST_S + 2.0)
    assert fold.memory.agents.limit_s == MOST_S


def test_who_came_before_a_look_showed_it_running_was_quick() -> None:
    fold = Fold()
    for k in range(3):
        _comes(fold, f"a{k}", 3000.0)
    assert fold.memory.agents.limit_s > LEAST_S
    requested = pilot("n1", is_held=False)
    fold.decide(snapshot(idle_nodes(1)), [requested], [record()])
    fold.decide(snapshot(idle_nodes(1)), held("n1"), [record()])
    assert fold.memory.agents.limit_s == LEAST_S


def test_a_pilot_behind_an_ordinary_job_is_given_up_at_once() -> None:
    seen = snapshot(with_state(idle_nodes(2), NodeState.ALLOCATED, "n1"), [running("7", "n1")])
    pilots = [pilot("n1", is_held=False), pilot("n2", is_held=False)]
    plan = Fold().decide(seen, pilots, [record()])
    assert released(plan) == {"n1"}
    assert set(plan.assignment) == {"n2"}


def test_a_held_node_nobody_wants_is_released_after_a_while() -> None:
    fold = Fold()
    seen = snapshot(BUSY)
    trainers = [record(n_max=1)]
    kept = set(fold.decide(seen, held("n1", "n2"), trainers).assignment)
    assert len(kept) == 1
    hold_s = fold.settings.hold_idle_s
    plan = fold.decide(seen, held("n1", "n2"), trainers, at_s=T0 + hold_s - 0.1)
    assert plan.releases == ()
    plan = fold.decide(seen, held("n1", "n2"), trainers, at_s=T0 + hold_s)
    assert released(plan) == {"n1", "n2"} - kept
    assert set(plan.memory.held_off) == set()  # given up, not given back


def test_four_times_the_unused_nodes_take_four_times_the_work() -> None:
    """Not sixteen times: what is set apart once must not be set apart again for each node."""

    def decides(n_nodes: int) -> Callable[[], object]:
        nodes = idle_nodes(n_nodes)
        pilots, seen = held(*[node.name for node in nodes]), snapshot(nodes)
        return lambda: Fold().decide(seen, pilots)

    few, many = decides(1000), decides(4000)
    # What else a process does meanwhile, such as collecting garbage, is not in all of three.
    usual_s = max(effort_s(few) for _ in range(3))
    assert min(effort_s(many) for _ in range(3)) < 9.0 * usual_s


def test_a_node_wanted_again_starts_its_wait_anew() -> None:
    fold = Fold()
    seen, both = snapshot(BUSY), held("n1", "n2")
    fold.decide(seen, both, [record(n_max=1)])
    fold.decide(seen, both, [record(n_max=2)], at_s=T0 + 4)
    plan = fold.decide(seen, both, [record(n_max=1)], at_s=T0 + 6)
    assert plan.releases == ()
    assert set(plan.memory.unused_since.values()) == {T0 + 6}


def test_a_requested_node_nobody_wants_is_released_at_once() -> None:
    plan = Fold().decide(snapshot(idle_nodes(1)), [pilot("n1", is_held=False)])
    assert [r.reason for r in plan.releases] == ["No trainer wants it."]


def test_an_empty_cluster_and_an_unknown_one_differ() -> None:
    fold = Fold()
    fold.decide(snapshot(BUSY), held("n1"), [record()])
    empty = Snapshot(taken_at_s=T0, nodes=(), jobs=())
    plan = fold.decide(empty, held("n1"), [record()], at_s=T0 + 1)
    assert (plan.assignment, plan.claims, plan.releases) == ({}, (), ())


def test_free_nodes_a_job_is_about_to_start_on_are_left_to_it() -> None:
    fold = Fold()
    job = pending("7", 2)
    nodes = idle_nodes(3)
    plan = fold.decide(snapshot(nodes, [job]), (), [record()])
    assert (len(plan.claims), plan.releases) == (1, ())
    requested = [pilot(c.node, is_held=False) for c in plan.claims]
    again = fold.decide(snapshot(nodes, [job]), requested, [record()], at_s=T0 + 1)
    assert (again.claims, again.releases) == ((), ())
    # A whole cycle has not started it: something we cannot see is in its way.
    after = snapshot(nodes, [job], at_s=T0 + 31, cycle_ended_s=T0 + 30)
    plan = fold.decide(after, requested, [record()], at_s=T0 + 31)
    assert (len(plan.claims), plan.releases) == (2, ())


def test_requests_and_give_backs_do_not_chase_each_other() -> None:
    fold = Fold()
    jobs = [pending("7", 1), pending("8", 3, submit_s=T0 + 1)]
    nodes = idle_nodes(4)
    pilots = [pilot("n1", is_held=False)]
    plan = fold.decide(snapshot(nodes, jobs), pilots, [record(n_max=1)])
    assert (released(plan), plan.claims) == ({"n1"}, ())
