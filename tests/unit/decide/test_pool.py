"""Which nodes may be used, until when, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bftrainer.decide.pool import build_pool
from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job, JobState, Node, NodeState, Reservation
from bftrainer.model.decision import Memory, PilotView, Pool, Settings
from tests.support.snapshots import (
    T0,
    idle_nodes,
    node,
    pending,
    pilot,
    running,
    snapshot,
    with_state,
)

NO_RESERVE = Settings(reserve_nodes_per_type=0)


def _pool(
    nodes: Sequence[Node],
    jobs: Sequence[Job] = (),
    *,
    pilots: Sequence[PilotView] = (),
    reservations: Sequence[Reservation] = (),
    settings: Settings = NO_RESERVE,
    memory: Memory | None = None,
    now_s: float = T0,
) -> Pool:
    known = memory or Memory(idle_seen={n.name: 9 for n in nodes})
    seen = snapshot(nodes, jobs, reservations=reservations)
    census = census_of(seen, pilots)
    queue = PrintedQueue(census, now_s, settings.cycle_s)
    return build_pool(census, queue.gap_ends, {}, pilots, known, settings, now_s)


def _names(pool: Pool) -> list[str]:
    return [n.name for n in pool.nodes]


def test_every_node_is_in_the_pool_or_has_a_reason() -> None:
    nodes = idle_nodes(len(NodeState))
    mixed = tuple(replace(n, state=s) for n, s in zip(nodes, NodeState, strict=True))
    pool = _pool(mixed)
    free = {n.name for n in mixed if n.state in {NodeState.IDLE, NodeState.PLANNED}}
    assert set(_names(pool)) == free
    assert set(pool.not_used) == {n.name for n in mixed} - free
    assert all(reason.endswith(".") for reason in pool.not_used.values())


def test_the_reason_of_the_batch_system_is_passed_on() -> None:
    pool = _pool([node("n1", NodeState.DRAINED, reason="bad disk")])
    assert pool.not_used == {"n1": "It is drained (bad disk)."}


def test_a_node_counts_only_after_enough_idle_snapshots() -> None:
    settings = replace(NO_RESERVE, idle_confirmations=2)
    memory = Memory(idle_seen={"n1": 2, "n2": 1})
    pool = _pool(idle_nodes(3), settings=settings, memory=memory)
    assert _names(pool) == ["n1"]
    assert "idle_confirmations" in pool.not_used["n2"]


def test_types_that_policy_excludes_are_left_alone() -> None:
    nodes = [node("n1", node_type="gpu"), node("n2", node_type="fat")]
    pool = _pool(nodes, settings=replace(NO_RESERVE, eligible_node_types=("gpu",)))
    assert _names(pool) == ["n1"]
    assert "fat" in pool.not_used["n2"]


@pytest.mark.parametrize(("gap_s", "is_used"), [(179.0, False), (180.0, True), (-5.0, False)])
def test_a_gap_must_hold_the_margin_and_the_shortest_stay(gap_s: float, *, is_used: bool) -> None:
    nodes = with_state(idle_nodes(1), NodeState.PLANNED, "n1")
    jobs = [pending("1", 4, start_s=T0 + gap_s, planned=("n1",))]
    pool = _pool(nodes, jobs)  # min_gap_s 120 + gap_margin_s 60
    assert _names(pool) == (["n1"] if is_used else [])
    if is_used:
        assert pool.nodes[0].usable_until_s == T0 + gap_s - 60
    else:
        assert pool.not_used["n1"] == (
            f"The batch system plans to use it in {max(0.0, gap_s):.0f} s (job 1)."
        )


def test_a_coming_reservation_ends_the_gap() -> None:
    maintenance = Reservation(name="m", start_s=T0 + 150, end_s=T0 + 9000, nodes=("n1",))
    assert _names(_pool(idle_nodes(2), reservations=[maintenance])) == ["n2"]


def test_given_back_nodes_are_left_alone() -> None:
    memory = Memory(idle_seen={"n1": 5, "n2": 5}, held_off={"n1": T0})
    pool = _pool(idle_nodes(2), memory=memory)
    assert _names(pool) == ["n2"]
    assert "left to the queue" in pool.not_used["n1"]


def test_held_and_requested_nodes_may_be_used_until_the_plan_or_their_limit() -> None:
    nodes = with_state(idle_nodes(3), NodeState.ALLOCATED, "n1", "n3")
    jobs = [pending("1", 3, start_s=T0 + 400, planned=("n1", "n2", "n3"))]
    pilots = [pilot("n1", end_s=T0 + 5000), pilot("n2", is_held=False), pilot("n3", end_s=T0 + 90)]
    pool = _pool(nodes, jobs, pilots=pilots)
    assert [(n.name, n.pilot_id, n.is_held, n.usable_until_s) for n in pool.nodes] == [
        ("n1", "p-n1", True, T0 + 340),  # gap_margin_s 60 before the start
        ("n2", "p-n2", False, T0 + 340),
        ("n3", "p-n3", True, T0 + 90),
    ]


@pytest.mark.parametrize(("left_s", "is_due"), [(60.5, False), (60.0, True), (-5.0, True)])
def test_a_held_node_is_left_the_margin_before_the_planned_start(
    left_s: float, *, is_due: bool
) -> None:
    nodes = with_state(idle_nodes(2), NodeState.ALLOCATED, "n1", "n2")
    jobs = [pending("7", 1, start_s=T0 + left_s, planned=("n1",))]
    pool = _pool(nodes, jobs, pilots=[pilot("n1", end_s=T0 + 5000), pilot("n2")])
    assert set(pool.due) == ({"p-n1"} if is_due else set())
    assert _names(pool) == (["n2"] if is_due else ["n1", "n2"])
    if is_due:
        assert pool.not_used["n1"].endswith("(job 7).")


@pytest.mark.parametrize("is_held", [False, True])
def test_a_pilot_of_a_node_that_saves_power_goes(*, is_held: bool) -> None:
    """A pending one would boot it; a running one keeps it from going off."""
    pool = _pool([node("n1", NodeState.POWER_SAVING)], pilots=[pilot("n1", is_held=is_held)])
    assert set(pool.due) == {"p-n1"}
    assert pool.not_used["n1"] == "It is power-saving."


@pytest.mark.parametrize("state", [NodeState.DRAINED, NodeState.DOWN, NodeState.RESERVED])
def test_held_nodes_that_are_lost_leave_the_pool(state: NodeState) -> None:
    pool = _pool([node("n1", state)], pilots=[pilot("n1", is_held=state is not NodeState.DOWN)])
    assert _names(pool) == []
    assert state.value in pool.not_used["n1"]


@pytest.mark.parametrize(
    "state",
    [
        *(NodeState.ALLOCATED, NodeState.COMPLETING, NodeState.UNKNOWN, NodeState.IDLE),
        NodeState.DOWN,  # its agent answers
    ],
)
def test_held_nodes_stay_while_their_state_does_not_speak_against_it(state: NodeState) -> None:
    assert _names(_pool([node("n1", state)], pilots=[pilot("n1")])) == ["n1"]


def test_a_pilot_near_its_end_is_no_longer_counted_on() -> None:
    near = pilot("n1", end_s=T0 + 20)  # end_margin_s
    far = pilot("n2", end_s=T0 + 21)
    pool = _pool(with_state(idle_nodes(2), NodeState.ALLOCATED, "n1", "n2"), pilots=[near, far])
    assert _names(pool) == ["n2"]
    assert "time limit" in pool.not_used["n1"]


def test_a_node_whose_pilot_leaves_is_not_in_the_pool() -> None:
    pool = _pool(idle_nodes(1), pilots=[pilot("n1", is_leaving=True)])
    assert _names(pool) == []
    assert "p-n1" in pool.not_used["n1"]


def test_a_node_an_ordinary_job_took_first_is_not_waited_for() -> None:
    nodes = with_state(idle_nodes(2), NodeState.ALLOCATED, "n1", "n2")
    pilots = [pilot("n1", is_held=False), pilot("n2", is_held=False)]
    pool = _pool(nodes, [running("1", "n1")], pilots=pilots)
    assert _names(pool) == ["n2"]  # nobody is on it: our pilot is just starting
    assert "took it" in pool.not_used["n1"]


def test_a_job_that_has_just_left_a_free_node_does_not_take_it() -> None:
    ending = replace(running("1", "n1"), state=JobState.COMPLETING)
    pool = _pool(idle_nodes(1), [ending], pilots=[pilot("n1", is_held=False)])
    assert _names(pool) == ["n1"]


def test_a_pilot_on_a_node_that_vanished_is_no_part_of_the_pool() -> None:
    pool = _pool(idle_nodes(1), pilots=[pilot("n9")])
    assert _names(pool) == ["n1"]


# ---- the reserve ---------------------------------------------------------------------


def test_the_reserve_is_kept_per_type() -> None:
    nodes = [node(f"{t}{k}", node_type=t) for t in ("cpu", "gpu") for k in (1, 2, 3)]
    pool = _pool(nodes, settings=Settings(reserve_nodes_per_type=2))
    assert _names(pool) == ["cpu1", "gpu1"]
    assert set(pool.reserve) == {"cpu2", "cpu3", "gpu2", "gpu3"}
    assert all("reserve_nodes_per_type" in pool.not_used[n] for n in pool.reserve)


def test_no_reserve_when_policy_wants_none() -> None:
    pool = _pool(idle_nodes(2), settings=NO_RESERVE)
    assert pool.reserve == ()
