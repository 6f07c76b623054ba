"""Until when a node may be used, and what comes then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bftrainer.decide.gaps import GapEnd, Then, gap_ends
from bftrainer.poll.snapshot import Job, Node, NodeState, Reservation
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

CYCLE_S = 30.0


def _ends(
    nodes: Sequence[Node],
    jobs: Sequence[Job] = (),
    *,
    reservations: Sequence[Reservation] = (),
    ours: Sequence[str] = (),
) -> dict[str, GapEnd]:
    return gap_ends(snapshot(nodes, jobs, reservations=reservations), T0, CYCLE_S, ours)


def _times(ends: dict[str, GapEnd]) -> dict[str, float]:
    return {name: end.at_s - T0 for name, end in ends.items()}


def _reservation(start_s: float, *nodes: str, is_maintenance: bool = False) -> Reservation:
    return Reservation(
        name="r",
        start_s=T0 + start_s,
        end_s=T0 + start_s + 600,
        nodes=nodes,
        is_maintenance=is_maintenance,
    )


# ---- what is known -------------------------------------------------------------------


def test_the_earliest_plan_counts() -> None:
    jobs = [
        pending("1", 2, start_s=T0 + 900, planned=("n1", "n2")),
        pending("2", 1, start_s=T0 + 500, planned=("n2",)),
        replace(pending("4", 1, start_s=T0 + 1, planned=("n1",)), pilot_id="p1"),
        replace(running("5", "n1"), planned_nodes=("n1",)),
    ]
    reservations = [_reservation(300, "n4"), _reservation(-900, "n5")]
    assert _times(_ends(idle_nodes(5), jobs, reservations=reservations)) == {
        "n1": 900,
        "n2": 500,
        "n4": 300,
    }


def test_without_plans_no_gap_has_an_end() -> None:
    assert _ends(idle_nodes(3)) == {}
    assert _ends(idle_nodes(3), [running("1", "n1")]) == {}


@pytest.mark.parametrize("is_maintenance", [True, False])
def test_a_reservation_ends_everybodys_use(*, is_maintenance: bool) -> None:
    job = pending("1", 1, start_s=T0 + 300, planned=("n2",))
    found = _ends(
        idle_nodes(2), [job], reservations=[_reservation(200, "n1", is_maintenance=is_maintenance)]
    )
    assert found["n1"].is_for_everybody
    assert not found["n2"].is_for_everybody
    assert found["n1"].then is (Then.MAINTENANCE if is_maintenance else Then.RESERVATION)
    assert found["n1"].sentence(T0).endswith("r of it begins in 200 s.")
    assert found["n2"].sentence(T0).endswith("in 300 s (job 1).")


# ---- planned for nobody knows whom -----------------------------------------------------


def test_a_planned_node_may_be_wanted_in_a_cycle_while_somebodys_plan_is_unknown() -> None:
    nodes = with_state(idle_nodes(3), NodeState.PLANNED, "n1", "n2")
    jobs = [pending("1", 1, start_s=T0 + 900, planned=("n1",)), pending("2", 1)]
    found = _ends(nodes, jobs)
    assert _times(found) == {"n1": 900, "n2": CYCLE_S}
    assert found["n2"].then is Then.UNKNOWN
    assert "does not say when" in found["n2"].sentence(T0)


@pytest.mark.parametrize(
    "jobs",
    [
        [],
        [pending("1", 1, start_s=T0 + 900, planned=("n1",))],
        [pending("1", 1, reason="Dependency")],
        [pending("1", 1, required=("n1",))],
        [pending("1", 1, partition="other")],
        [replace(pending("1", 1), pilot_id="p1")],
    ],
    ids=["nobody waits", "plans are known", "not planned", "elsewhere", "partition", "ours"],
)
def test_it_is_a_left_over_where_nobody_can_be_meant(jobs: list[Job]) -> None:
    nodes = [node("n1"), node("n2", NodeState.PLANNED, partitions=("batch",))]
    assert "n2" not in _ends(nodes, jobs)


def test_a_start_that_has_passed_counts_only_while_the_node_is_called_planned() -> None:
    nodes = with_state(idle_nodes(3), NodeState.PLANNED, "n2")
    nodes = with_state(nodes, NodeState.ALLOCATED, "n3")
    late = pending("1", 3, start_s=T0 - 2 * CYCLE_S - 1, planned=("n1", "n2", "n3"))
    assert _times(_ends(nodes, [late], ours=["n3"])) == {"n2": CYCLE_S}
    soon = replace(late, start_s=T0 - 2 * CYCLE_S)
    assert _times(_ends(nodes, [soon], ours=["n3"])) == dict.fromkeys(("n1", "n2", "n3"), -60)


# ---- planned, but on no named nodes -----------------------------------------------------


def test_a_job_without_nodes_bounds_as_many_as_it_asks_for_and_those_that_lose_least() -> None:
    jobs = [
        pending("1", 2, start_s=T0 + 500),
        pending("2", 1, start_s=T0 + 400, planned=("n1",)),  # another's by then
        pending("3", 1, start_s=T0 + 900, planned=("n2",)),  # loses 400 s
    ]
    found = _ends(idle_nodes(4), jobs, ours=["n3"])
    assert _times(found) == {"n1": 400, "n2": 500, "n4": 500}  # n3 has a pilot
    assert found["n4"].then is Then.ANY_JOB
    assert "does not name" in found["n4"].sentence(T0)


def test_what_running_jobs_leave_in_time_serves_first() -> None:
    nodes = with_state(idle_nodes(5), NodeState.ALLOCATED, "n1", "n2", "n3")
    busy = [
        replace(running("7", "n1"), time_limit_s=300.0),
        replace(running("8", "n2"), time_limit_s=5000.0),
        replace(running("9", "n3"), time_limit_s=None),
    ]
    two = pending("1", 2, start_s=T0 + 500)
    assert len(_ends(nodes, [*busy, two])) == 1
    assert _ends(nodes, [*busy, replace(two, n_nodes=1)]) == {}
    # Another job planned on the node that comes free: it serves that one.
    other = pending("2", 1, start_s=T0 + 300, planned=("n1",))
    assert len(_ends(nodes, [*busy, two, other])) == 1 + 2


def test_held_nodes_serve_when_nothing_else_does() -> None:
    nodes = with_state(idle_nodes(3), NodeState.ALLOCATED, "n1", "n2", "n3")
    found = _ends(nodes, [pending("1", 2, start_s=T0 + 500)], ours=["n2", "n3"])
    assert _times(found) == {"n2": 500, "n3": 500}


def test_tasks_of_an_array_are_planned_one_at_a_time() -> None:
    tasks = [pending(f"5_{k}", 1, start_s=T0 + 500) for k in range(1, 9)]
    assert len(_ends(idle_nodes(8), tasks)) == 1
    jobs = [pending(f"{k}", 1, start_s=T0 + 500) for k in range(1, 9)]
    assert len(_ends(idle_nodes(8), jobs)) == 8


def test_only_nodes_it_fits_on_are_bounded() -> None:
    nodes = [
        node("a", partitions=("batch",), gpus=0),
        node("b", partitions=("batch",), gpus=4),
        node("c", partitions=("fat",), gpus=4),
    ]
    job = pending("1", 3, start_s=T0 + 500, gpus_per_node=2)
    assert set(_ends(nodes, [job])) == {"b"}
    assert set(_ends(nodes, [replace(job, partition="fat,batch")])) == {"b", "c"}
    assert _ends(nodes, [replace(job, excluded_nodes=("b",))]) == {}
    fast = [replace(n, features=("fast",) if n.name == "b" else ("slow",)) for n in nodes]
    either = replace(job, gpus_per_node=0, features="fast|new")
    assert set(_ends(fast, [either])) == {"b"}


def test_required_nodes_are_as_good_as_planned_ones() -> None:
    job = pending("1", 2, start_s=T0 + 500, required=("n3",))
    assert set(_ends(idle_nodes(4), [job])) == {"n3", "n1"}
    assert set(_ends(idle_nodes(4), [replace(job, n_nodes=1)])) == {"n3"}


def test_a_long_queue_of_them_is_looked_at_as_far_as_it_matters() -> None:
    jobs = [pending(f"{k}", 1, start_s=T0 + k) for k in range(1, 2001)]
    found = _ends(tuple(node(f"n{k}") for k in range(300)), jobs)
    assert len(found) == 64
    assert max(_times(found).values()) == 64


def test_pilots_of_ours_are_no_plan() -> None:
    mine = replace(pending("1", 1, start_s=T0 + 500), pilot_id=pilot("n1").pilot_id)
    assert _ends(idle_nodes(2), [mine], ours=["n1"]) == {}


def test_a_reservation_far_off_does_not_explain_why_a_node_is_planned() -> None:
    nodes = with_state(idle_nodes(1), NodeState.PLANNED, "n1")
    far = _reservation(9000, "n1")
    assert _times(_ends(nodes, [pending("1", 1)], reservations=[far])) == {"n1": CYCLE_S}


def test_what_backfill_has_in_a_slot_begins_with_the_slot() -> None:
    at_s = 60.0 * (T0 // 60.0 + 5)
    planned = GapEnd(at_s=at_s + 53.0, then=Then.JOB, by="7")
    assert planned.last_end_s(60.0) == at_s
    assert planned.last_end_s(0.0) == at_s + 53.0
    maintenance = replace(planned, then=Then.MAINTENANCE)
    assert maintenance.last_end_s(60.0) == at_s + 53.0
