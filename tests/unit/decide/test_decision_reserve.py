"""The reserve as the decision keeps it: restored in time, and not with what others have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.model.cluster import STAND_IN, NodeState
from bftrainer.model.decision import Settings
from tests.support.snapshots import (
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
)


def test_the_reserve_is_kept_and_restored() -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=1))
    plan = fold.decide(snapshot(idle_nodes(3)), (), [record()])
    assert (claimed(plan), plan.reserve) == ({"n1", "n2"}, ("n3",))
    busy = with_state(idle_nodes(3), NodeState.ALLOCATED, *node_names(3))
    seen = snapshot(busy, [running("7", "n3")])
    plan = fold.decide(seen, held("n1", "n2"), [record()], at_s=T0 + 1)
    assert len(plan.releases) == 1  # the job took the reserve: one of ours becomes it
    assert "reserve" in plan.releases[0].reason
    gone = plan.releases[0].node
    keep = ({"n1", "n2"} - {gone}).pop()
    leaving = [pilot(keep), pilot(gone, is_leaving=True)]
    assert not fold.decide(seen, leaving, [record()], at_s=T0 + 1.1).releases
    free = snapshot(with_state(busy, NodeState.IDLE, gone), [running("7", "n3")])
    plan = fold.decide(free, held(keep), [record()], at_s=T0 + 2)
    assert (plan.claims, plan.releases, plan.reserve) == ((), (), (gone,))


def test_the_reserve_is_restored_as_soon_as_a_job_is_announced() -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=1))
    seen = snapshot(with_state(idle_nodes(4), NodeState.ALLOCATED, *node_names(3)))
    assert fold.decide(seen, held(*node_names(3)), [record()]).reserve == ("n4",)
    waits = replace(seen, jobs=(pending(f"{STAND_IN}1", 1),))  # n4 is free for it
    first = fold.decide(waits, held(*node_names(3)), [record()], at_s=T0 + 1, is_new=False)
    assert [r.for_job for r in first.releases] == [""]
    assert "reserve" in first.releases[0].reason
    gone = first.releases[0].node
    pilots = [pilot(name, is_leaving=name == gone) for name in node_names(3)]
    then = fold.decide(waits, pilots, [record()], at_s=T0 + 1.1, is_new=False)
    assert then.releases == ()  # there is one on its way


def test_what_a_job_is_about_to_have_is_nobodys_reserve() -> None:
    """n4 is free, and job 8 has room there behind a blocked one."""
    fold = Fold(settings=Settings(reserve_nodes_per_type=1))
    seen = snapshot(
        with_state(idle_nodes(5), NodeState.ALLOCATED, *node_names(3), "n5"),
        [running("6", "n5"), pending("7", 5), pending("8", 1, submit_s=T0)],
    )
    first = fold.decide(seen, held(*node_names(3)), [record()])
    assert [r.for_job for r in first.releases] == [""]
    assert "reserve" in first.releases[0].reason
    gone = first.releases[0].node
    pilots = [pilot(name, is_leaving=name == gone) for name in node_names(3)]
    then = fold.decide(seen, pilots, [record()], at_s=T0 + 0.1, is_new=False)
    assert then.releases == ()  # one of the two is left over


@pytest.mark.parametrize(("size", "expected"), [(1, 0), (2, 1), (3, 2), (9, 2)])
def test_what_the_reserve_lacks_is_released_as_far_as_we_hold_it(size: int, expected: int) -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=size))
    nodes = with_state(idle_nodes(4), NodeState.ALLOCATED, "n1", "n2", "n4")
    plan = fold.decide(snapshot(nodes), held("n1", "n2"), [record()])
    assert plan.reserve == ("n3",)
    assert len(plan.releases) == expected
    assert not Fold(settings=fold.settings).decide(snapshot(nodes), (), [record()]).releases


@pytest.mark.parametrize("state", [NodeState.COMPLETING, NodeState.IDLE])
def test_a_reserve_node_on_its_way_is_not_released_twice(state: NodeState) -> None:
    settings = Settings(reserve_nodes_per_type=1, idle_confirmations=2)
    fold = Fold(settings=settings)
    busy = with_state(idle_nodes(3), NodeState.ALLOCATED, *node_names(3))
    jobs = [running("7", "n3"), pending("8", 99)]  # somebody waits, so hold-off is in force
    plan = fold.decide(snapshot(busy, jobs), held("n1", "n2"), [record()])
    gone = plan.releases[0].node
    keep = ({"n1", "n2"} - {gone}).pop()
    for at_s in (T0 + 1, T0 + 2):
        seen = snapshot(with_state(busy, state, gone), jobs)
        assert not fold.decide(seen, held(keep), [record()], at_s=at_s).releases


def test_a_free_node_not_yet_confirmed_counts_for_the_reserve() -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=1, idle_confirmations=2))
    seen = snapshot(with_state(idle_nodes(3), NodeState.ALLOCATED, "n1", "n2"))
    first = fold.decide(seen, held("n1", "n2"), [record()])
    second = fold.decide(seen, held("n1", "n2"), [record()], at_s=T0 + 1)
    assert (first.releases, second.releases) == ((), ())
    assert second.reserve == ("n3",)


def test_the_reserve_is_restored_per_type() -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=1))
    nodes = (
        node("c1", NodeState.ALLOCATED),
        node("c2", NodeState.IDLE),
        node("g1", NodeState.ALLOCATED, node_type="gpu"),
        node("g2", NodeState.ALLOCATED, node_type="gpu"),
    )
    plan = fold.decide(snapshot(nodes), held("c1", "g1", "g2"), [record()])
    assert len(released(plan) & {"g1", "g2"}) == 1
    assert "c1" not in released(plan)
