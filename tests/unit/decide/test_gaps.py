"""Until when a node may be used, and what comes then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job, Node, NodeState, Reservation
from bftrainer.model.queue import GapEnd, Then
from tests.support.snapshots import (
    T0,
    idle_nodes,
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
) -> dict[str, GapEnd]:
    return PrintedQueue(
        census_of(snapshot(nodes, jobs, reservations=reservations)), T0, CYCLE_S
    ).gap_ends


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
    assert found["n1"].then is (Then.MAINTENANCE if is_maintenance else Then.RESERVATION)
    assert found["n1"].sentence(T0).endswith("r of it begins in 200 s.")
    assert found["n2"].sentence(T0).endswith("in 300 s (job 1).")


def test_a_start_that_has_long_passed_is_no_plan() -> None:
    late = pending("1", 2, start_s=T0 - 2 * CYCLE_S - 1, planned=("n1", "n2"))
    assert _ends(idle_nodes(2), [late]) == {}
    soon = replace(late, start_s=T0 - 2 * CYCLE_S)
    assert _times(_ends(idle_nodes(2), [soon])) == dict.fromkeys(("n1", "n2"), -60)


def test_what_names_no_nodes_ends_no_gap() -> None:
    nodes = with_state(idle_nodes(2), NodeState.PLANNED, "n1", "n2")
    assert _ends(nodes, [pending("1", 2, start_s=T0 + 500), pending("2", 1)]) == {}


def test_required_nodes_are_as_good_as_planned_ones() -> None:
    job = pending("1", 2, start_s=T0 + 500, required=("n3",))
    assert set(_ends(idle_nodes(4), [job])) == {"n3"}


def test_pilots_of_ours_are_no_plan() -> None:
    job = pending("1", 1, start_s=T0 + 500, planned=("n1",))
    assert _ends(idle_nodes(2), [replace(job, pilot_id=pilot("n1").pilot_id)]) == {}


@pytest.mark.parametrize(("slot_s", "before_s"), [(60.0, 53.0), (0.0, 0.0)])
def test_what_is_planned_in_a_slot_begins_with_the_slot(slot_s: float, before_s: float) -> None:
    at_s = 60.0 * (T0 // 60.0 + 5) + 53.0
    job = pending("7", 1, start_s=at_s, planned=("n1",))
    maintenance = Reservation(name="r", start_s=at_s, end_s=at_s + 60, nodes=("n2",))
    seen = snapshot(idle_nodes(2), [job], reservations=[maintenance])
    ends = PrintedQueue(census_of(replace(seen, plan_resolution_s=slot_s)), T0, CYCLE_S).gap_ends
    assert (ends["n1"].at_s, ends["n1"].last_end_s) == (at_s, at_s - before_s)
    assert ends["n2"].last_end_s == at_s, "a reservation holds from its own second on"
