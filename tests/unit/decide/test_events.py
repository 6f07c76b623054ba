"""Idle counts and the one event between two situations."""

from __future__ import annotations

from bftrainer.decide.observation import event_between, observe_idle
from bftrainer.model.census import census_of
from bftrainer.model.cluster import NodeState, Snapshot
from bftrainer.model.decision import Event, Situation
from tests.support.snapshots import T0, idle_nodes, snapshot, with_state


def _situation(
    usable: str = "", pending: str = "", trainers: str = "", held: str = ""
) -> Situation:
    return Situation(
        usable=frozenset(usable.split()),
        pending=frozenset(pending.split()),
        trainers=frozenset(trainers.split()),
        held=frozenset(held.split()),
    )


def test_idle_snapshots_are_counted_in_a_row() -> None:
    nodes = idle_nodes(3)
    seen = observe_idle({}, census_of(snapshot(nodes)), 2)
    seen = observe_idle(seen, census_of(snapshot(with_state(nodes, NodeState.ALLOCATED, "n2"))), 2)
    assert seen == {"n1": 2, "n3": 2}
    seen = observe_idle(seen, census_of(snapshot(nodes)), 2)
    assert seen == {"n1": 2, "n2": 1, "n3": 2}, "more than enough is not counted"


def test_planned_nodes_are_idle_and_busy_ones_are_not() -> None:
    nodes = idle_nodes(len(NodeState))
    for one, state in zip(nodes, NodeState, strict=True):
        counted = observe_idle({}, census_of(snapshot(with_state(nodes[:1], state, "n1"))), 1)
        assert bool(counted) == (state in {NodeState.IDLE, NodeState.PLANNED}), one


def test_a_node_that_vanishes_is_forgotten() -> None:
    seen = observe_idle({"n1": 4, "n9": 7}, census_of(snapshot(idle_nodes(1))), 9)
    assert seen == {"n1": 5}


def test_unknown_nodes_change_no_count() -> None:
    unknown = Snapshot(taken_at_s=T0, nodes=None, jobs=())
    assert observe_idle({"n1": 4}, census_of(unknown), 9) == {"n1": 4}


def test_no_change_is_no_event() -> None:
    same = _situation("n1 n2", "7", "t1", "p1")
    assert event_between(same, _situation("n2 n1", "7", "t1", "p1"), T0) is None


def test_simultaneous_changes_are_one_event() -> None:
    before = _situation("n1 n2", "7 8", "t1", "p1")
    after = _situation("n3 n2 n4", "8 9", "t2", "p2")
    assert event_between(before, after, T0) == Event(
        at_s=T0,
        joined=("n3", "n4"),
        left=("n1",),
        jobs_arrived=("9",),
        jobs_gone=("7",),
        trainers_arrived=("t2",),
        trainers_gone=("t1",),
        agents_arrived=("p2",),
        agents_gone=("p1",),
    )
