"""Which pilots go when ordinary jobs wait, and for how long their nodes stay free."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from bftrainer.decide import cycles
from bftrainer.decide.draft import Draft
from bftrainer.decide.held_off import observe
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Node, NodeState, Snapshot
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Settings
from tests.support.snapshots import (
    T0,
    given_back,
    held,
    idle_nodes,
    node,
    pending,
    pilot,
    running,
    snapshot,
    with_state,
)

SETTINGS = Settings(reserve_nodes_per_type=0, cycle_s=30.0)


def _busy(count: int, *busy: str) -> tuple[Node, ...]:
    return with_state(idle_nodes(count), NodeState.ALLOCATED, *busy)


def _nodes_for(given: Draft) -> dict[str, set[str]]:
    """Job → the nodes released for it."""
    result: dict[str, set[str]] = {}
    for release in given.releases:
        result.setdefault(release.for_job, set()).add(release.node)
    return result


def test_without_give_back_a_job_gets_free_nodes_and_ours_are_left_to_preemption() -> None:
    own = replace(SETTINGS, gives_back=False)
    seen = snapshot(_busy(6, "n1", "n2", "n3", "n4"), [pending("7", 4)])
    given = given_back(seen, held("n1", "n2", "n3", "n4"), settings=own)
    assert given.releases == ()
    assert set(given.memory.held_off) == {"n5", "n6"}  # no pilot takes them from it


# ---- who gets something ----------------------------------------------------------------


def test_nobody_waits_nothing_is_released() -> None:
    assert given_back(snapshot(_busy(2, "n1")), held("n1")).releases == ()


def test_the_head_job_gets_what_it_lacks() -> None:
    seen = snapshot(_busy(6, "n1", "n2", "n3", "n4"), [pending("7", 4)])
    given = given_back(seen, held("n1", "n2", "n3", "n4"))
    assert _nodes_for(given) == {"7": {"n1", "n2"}}
    assert [r.pilot_id for r in given.releases] == ["p-n1", "p-n2"]
    assert "7" in given.releases[0].reason


def test_free_nodes_suffice() -> None:
    seen = snapshot(_busy(4, "n1", "n2"), [pending("7", 2)])
    assert given_back(seen, held("n1", "n2")).releases == ()


def test_a_job_too_large_for_all_we_hold_gets_nothing() -> None:
    seen = snapshot(_busy(4, "n1", "n2", "n4"), [pending("7", 4), running("6", "n4")])
    assert given_back(seen, held("n1", "n2")).releases == ()


def test_several_jobs_add_up() -> None:
    jobs = [pending("7", 2, submit_s=T0), pending("8", 1, submit_s=T0 + 1), pending("9", 9)]
    given = given_back(
        snapshot(_busy(5, "n1", "n2", "n3", "n4"), jobs), held("n1", "n2", "n3", "n4")
    )
    assert _nodes_for(given) == {"7": {"n1"}, "8": {"n2"}}  # n5 was free


def test_priority_comes_before_age() -> None:
    jobs = [pending("7", 2, submit_s=T0), pending("8", 2, submit_s=T0 + 9, priority=5.0)]
    given = given_back(snapshot(_busy(3, "n1", "n2", "n3"), jobs), held("n1", "n2", "n3"))
    assert set(_nodes_for(given)) == {"8"}


def test_a_job_that_fits_before_the_blocked_head_gets_nodes() -> None:
    head = pending("7", 8, start_s=T0 + 700, planned=("n1", "n2", "n3", "n4"), priority=9.0)
    seen = snapshot(_busy(4, "n1", "n2", "n3", "n4"), [head, pending("8", 2, limit_s=600.0)])
    assert _nodes_for(given_back(seen, held("n1", "n2", "n3"))) == {"8": {"n1", "n2"}}


def test_a_job_that_would_delay_the_blocked_head_gets_none() -> None:
    head = pending("7", 8, start_s=T0 + 500, planned=("n1", "n2", "n3", "n4"), priority=9.0)
    seen = snapshot(_busy(4, "n1", "n2", "n3", "n4"), [head, pending("8", 2, limit_s=600.0)])
    assert given_back(seen, held("n1", "n2", "n3")).releases == ()


def test_nodes_the_head_is_not_planned_on_are_not_in_its_way() -> None:
    head = pending("7", 8, start_s=T0 + 500, planned=("n1", "n2"), priority=9.0)
    jobs = [head, pending("8", 1, limit_s=9000.0), pending("9", 2, limit_s=9000.0)]
    seen = snapshot(_busy(4, "n1", "n2", "n3", "n4"), jobs)
    assert _nodes_for(given_back(seen, held("n1", "n2", "n3"))) == {"8": {"n3"}}


@pytest.mark.parametrize("limit_s", [None, 86400.0])
def test_in_doubt_nodes_are_given_back(limit_s: float | None) -> None:
    head = pending("7", 8, start_s=None if limit_s else T0 + 10, priority=9.0)
    seen = snapshot(_busy(2, "n1", "n2"), [head, pending("8", 1, limit_s=limit_s)])
    assert _nodes_for(given_back(seen, held("n1", "n2"))) == {"8": {"n1"}}


def test_a_head_that_can_start_blocks_nobody() -> None:
    head = pending("7", 1, start_s=T0 + 1, priority=9.0)
    seen = snapshot(_busy(2, "n1", "n2"), [head, pending("8", 1, limit_s=9000.0)])
    assert _nodes_for(given_back(seen, held("n1", "n2"))) == {"7": {"n1"}, "8": {"n2"}}


def test_jobs_that_cannot_start_cost_nothing() -> None:
    seen = snapshot(_busy(2, "n1", "n2"), [pending("7", 1, is_entitled=False, priority=9.0)])
    assert given_back(seen, held("n1", "n2")).releases == ()


@pytest.mark.parametrize("reason", ["Resources", "Priority", "", "SomethingNew"])
def test_the_reason_of_one_that_can_does_not_matter(reason: str) -> None:
    seen = snapshot(_busy(2, "n1", "n2"), [pending("7", 1, reason=reason)])
    assert len(given_back(seen, held("n1", "n2")).releases) == 1


# ---- on which nodes --------------------------------------------------------------------


def test_required_nodes_are_the_ones_released() -> None:
    seen = snapshot(_busy(4, "n1", "n2", "n3"), [pending("7", 1, required=("n3",))])
    assert _nodes_for(given_back(seen, held("n1", "n2", "n3"))) == {"7": {"n3"}}


def test_free_nodes_that_do_not_fit_are_no_help() -> None:
    nodes = (
        node("n1", NodeState.ALLOCATED, gpus=4, features=("a100", "ib"), partitions=("batch",)),
        node("n2", gpus=0, features=("ib",), partitions=("batch",)),
        node("n3", gpus=4, features=("a100", "ib"), partitions=("debug",)),
        node("n4", gpus=4, features=("v100", "ib"), partitions=("batch",)),
    )
    job = pending("7", 1, gpus_per_node=2, features="a100&ib")
    assert _nodes_for(given_back(snapshot(nodes, [job]), held("n1"))) == {"7": {"n1"}}


def test_nodes_we_hold_that_do_not_fit_stay() -> None:
    nodes = (node("n1", NodeState.ALLOCATED, gpus=1, features=("v100",)),)
    for job in (pending("7", 1, gpus_per_node=2), pending("7", 1, features="a100")):
        assert given_back(snapshot(nodes, [job]), held("n1")).releases == ()


def test_what_nobody_can_read_is_no_condition() -> None:
    nodes = (node("n1", NodeState.ALLOCATED, features=("v100",)),)
    unread = replace(pending("7", 1), unclear="a constraint we cannot read")
    seen = snapshot(nodes, [unread])
    assert len(given_back(seen, held("n1")).releases) == 1


def test_requested_pilots_go_before_held_ones() -> None:
    pilots = [pilot("n1"), pilot("n2", is_held=False), pilot("n3")]
    seen = snapshot(_busy(3, "n1", "n3"), [pending("7", 2)])
    assert [r.node for r in given_back(seen, pilots).releases] == ["n2", "n1"]


def test_the_cheapest_for_the_trainers_go_first() -> None:
    price = {"n1": 2.0, "n2": 0.0, "n3": 1.0}

    def cheapest(count: int, candidates: Collection[str], gone: Collection[str]) -> list[str]:
        return sorted(candidates, key=price.__getitem__)[:count]

    given = given_back(
        snapshot(_busy(3, "n1", "n2", "n3"), [pending("7", 2)]),
        held("n1", "n2", "n3"),
        Memory(assignment=dict.fromkeys(price, "t1")),
        pick=cheapest,
    )
    assert [r.node for r in given.releases] == ["n2", "n3"]


@pytest.mark.parametrize("state", [NodeState.DRAINED, NodeState.DOWN, NodeState.RESERVED])
def test_nodes_nobody_can_use_are_neither_offered_nor_counted(state: NodeState) -> None:
    nodes = with_state(_busy(3, "n1", "n2", "n3"), state, "n1")
    seen = snapshot(nodes, [pending("7", 2)])
    assert _nodes_for(given_back(seen, held("n1", "n2", "n3"))) == {"7": {"n2", "n3"}}
    leaving = [pilot("n1", is_leaving=True), *held("n2", "n3")]
    assert _nodes_for(given_back(seen, leaving)) == {"7": {"n2", "n3"}}
    assert given_back(seen, held("n1", "n2")).releases == ()


def test_a_node_an_ordinary_job_took_is_not_given_twice() -> None:
    pilots = [pilot("n1", is_held=False), pilot("n2")]
    seen = snapshot(_busy(2, "n1", "n2"), [running("6", "n1"), pending("7", 1)])
    assert _nodes_for(given_back(seen, pilots)) == {"7": {"n2"}}


def test_a_pilot_on_a_node_that_vanished_disturbs_nothing() -> None:
    pilots = [pilot("n8"), pilot("n9", is_leaving=True), pilot("n1")]
    seen = snapshot(_busy(1, "n1"), [pending("7", 1)])
    assert _nodes_for(given_back(seen, pilots)) == {"7": {"n1"}}


# ---- once is enough --------------------------------------------------------------------


def test_nodes_on_their_way_back_are_counted() -> None:
    seen = snapshot(_busy(3, "n1", "n2", "n3"), [pending("7", 2)])
    leaving = [pilot("n1", is_leaving=True), pilot("n2", is_leaving=True), pilot("n3")]
    assert given_back(seen, leaving).releases == ()


@pytest.mark.parametrize("state", [NodeState.COMPLETING, NodeState.ALLOCATED, NodeState.IDLE])
def test_nodes_given_back_are_counted_until_somebody_takes_them(state: NodeState) -> None:
    memory = Memory(held_off={"n1": T0 - 1})
    nodes = with_state(_busy(2, "n2"), state, "n1")
    seen = snapshot(nodes, [pending("7", 1)])
    assert given_back(seen, held("n2"), memory).coming_back == {"n1"}
    assert given_back(seen, held("n2"), memory).releases == ()


def test_a_node_given_back_and_taken_by_another_job_is_gone() -> None:
    memory = Memory(held_off={"n1": T0 - 1})
    seen = snapshot(_busy(2, "n1", "n2"), [running("6", "n1"), pending("7", 1)])
    assert _nodes_for(given_back(seen, held("n2"), memory)) == {"7": {"n2"}}


# ---- hold-off --------------------------------------------------------------------------


def _held_off(seen: Snapshot, *pilots: PilotView, now_s: float = T0 + 20) -> dict[str, float]:
    """What is left of n1 being held off at T0, after a look."""
    given = DecisionInput(
        now_s=now_s,
        snapshot=seen,
        is_new_snapshot=True,
        pilots=pilots,
        trainers=(),
        settings=SETTINGS,
        memory=Memory(held_off={"n1": T0}),
    )
    memory = cycles.observe(given.memory, given)
    return dict(observe(memory, given, census_of(seen, pilots)).held_off)


@pytest.mark.parametrize(
    ("ended_s", "is_kept"), [(None, True), (T0 - 20.0, True), (T0, True), (T0 + 1.0, False)]
)
def test_nodes_stay_free_until_a_cycle_has_passed(ended_s: float | None, *, is_kept: bool) -> None:
    seen = snapshot(idle_nodes(1), [pending("7", 9)], at_s=T0 + 20, cycle_ended_s=ended_s)
    assert _held_off(seen) == ({"n1": T0} if is_kept else {})


def test_a_scheduler_that_reports_no_cycle_gets_two_cycle_times() -> None:
    for at_s, is_kept in ((T0 + 60, True), (T0 + 61, False)):
        seen = snapshot(idle_nodes(1), [pending("7", 9)], at_s=at_s)
        assert bool(_held_off(seen, now_s=at_s)) is is_kept


def test_nobody_waits_nothing_is_held_off() -> None:
    assert _held_off(snapshot(idle_nodes(1))) == {}
    assert _held_off(snapshot(idle_nodes(1), [pending("7", 1, is_entitled=False)])) == {}


def test_it_is_counted_from_when_the_node_was_free_and_over_when_a_job_has_it() -> None:
    waits = pending("7", 9)
    leaving = pilot("n1", is_leaving=True)
    assert _held_off(snapshot(_busy(1, "n1"), [waits]), leaving) == {"n1": T0 + 20}
    clearing = with_state(idle_nodes(1), NodeState.COMPLETING, "n1")
    assert _held_off(snapshot(clearing, [waits])) == {"n1": T0 + 20}
    assert _held_off(snapshot(_busy(1, "n1"), [waits, running("6", "n1")])) == {}


# ---- what the look does not show yet -------------------------------------------------------


def test_a_pilot_that_came_after_the_look_is_in_nobodys_way_where_pilots_come_last() -> None:
    """The cycle that started it passed over the job, or started that, too: a look will say."""
    seen = snapshot(idle_nodes(2), [pending("7", 2)])
    assert len(given_back(seen, held("n1", "n2")).releases) == 2
    last = replace(seen, pilots_come_last=True)
    assert given_back(last, held("n1", "n2")).releases == ()
    shown = replace(last, nodes=_busy(2, "n1", "n2"))
    assert len(given_back(shown, held("n1", "n2")).releases) == 2


# ---- nodes of another daemon -----------------------------------------------------------


@pytest.mark.parametrize(("wanted", "ours"), [(1, 1), (2, 2), (4, 2), (5, 0)])
def test_with_another_daemons_nodes_each_gives_back_its_own(wanted: int, ours: int) -> None:
    """Its pilots give way to the same jobs; ours do not wait for them."""
    theirs = [
        replace(running(str(k), f"n{k}"), pilot_id=f"p00000{k}.0123abcd", partitions=("bf",))
        for k in (3, 4)
    ]
    seen = snapshot(_busy(4, "n1", "n2", "n3", "n4"), [pending("7", wanted), *theirs])
    given = given_back(seen, held("n1", "n2"))
    assert len(given.releases) == ours
    assert {release.node for release in given.releases} <= {"n1", "n2"}
    # The last two are no one's to give if they are ordinary jobs'.
    plain = [replace(job, pilot_id=None) for job in theirs]
    seen = snapshot(_busy(4, "n1", "n2", "n3", "n4"), [pending("7", wanted), *plain])
    assert len(given_back(seen, held("n1", "n2")).releases) == (ours if wanted <= 2 else 0)
