"""What backfill will plan next for jobs that cannot start now."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bftrainer.decide.queue.backfill import BackfillPlan, neighbours
from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.lab.site.timeline import neighbours as slurms_neighbours
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job, JobState, NodeState, Reservation, Snapshot
from bftrainer.model.queue import earliest, slot_begin_s
from tests.support.snapshots import (
    T0,
    Fold,
    idle_nodes,
    pending,
    pilot,
    record,
    running,
    snapshot,
    with_state,
)

# The first ends within T0 + 70 s; those until T0 + 100 s count as one, then until T0 + 130 s.
ENDS_S = 65.0


def ends_at(job_id: str, node: str, after_s: float) -> Job:
    return replace(running(job_id, node), time_limit_s=after_s)


def planned(
    jobs: list[Job], usable: tuple[str, ...] = ("n1", "n2"), **changes: object
) -> tuple[BackfillPlan, dict[str, tuple[float, str]]]:
    """Let all pending jobs wait; the plan, and who is first on each node, and when."""
    busy = {name for job in jobs for name in job.nodes}
    nodes = with_state(idle_nodes(4), NodeState.ALLOCATED, *busy)
    seen: Snapshot = replace(snapshot(nodes, jobs), **changes)  # type: ignore[arg-type]
    queue = PrintedQueue(census_of(seen), T0, 30.0)
    plan = queue.next_plan(queue.sets.named(usable))
    for job in queue.jobs:
        plan.wait(job, queue.requests.of(job))
    ends = earliest(plan.planned_starts, queue.sets)
    return plan, {name: (end.at_s - T0, end.by) for name, end in ends.items()}


def test_it_starts_when_enough_nodes_are_free_whatever_is_printed() -> None:
    blocked = pending("7", 3, limit_s=500.0, start_s=T0 + 1000, planned=("n1",))
    plan, first = planned([blocked, ends_at("80", "n3", ENDS_S)])
    assert first == dict.fromkeys(("n1", "n2", "n3"), (ENDS_S, "7"))
    assert plan.kept_off(ENDS_S, is_in_reservation=False) == 0
    assert plan.kept_off(ENDS_S + 1.0, is_in_reservation=False).bit_count() == 3


def test_what_nobody_can_work_out_is_as_it_is_printed() -> None:
    """A job of four, and when n3 and n4 come free is not known."""
    blocked = pending("7", 4, start_s=T0 + 1000, planned=("n1",))
    assert planned([blocked])[1] == {"n1": (1000.0, "7")}
    assert planned([replace(blocked, start_s=T0 - 1.0)])[1] == {}


def test_who_comes_before_is_not_delayed() -> None:
    """The second fits beside the first, the third only when that has ended."""
    jobs = [
        pending("7", 3, limit_s=500.0, priority=3.0),
        pending("8", 1, limit_s=900.0, priority=2.0),
        pending("9", 2, limit_s=900.0, priority=1.0),
        *(ends_at("80", "n3", ENDS_S), ends_at("81", "n4", 400.0)),
    ]
    plan, first = planned(jobs)
    assert first["n4"] == (400.0, "8")
    assert isinstance(plan, BackfillPlan)
    assert [begin_s - T0 for begin_s, _, _ in plan._planned] == [ENDS_S, 400.0, ENDS_S + 500.0]


def test_a_job_that_starts_now_has_its_nodes_until_its_limit() -> None:
    nodes = with_state(idle_nodes(2), NodeState.ALLOCATED)
    queue = PrintedQueue(census_of(snapshot(nodes, [pending("7", 2)])), T0, 30.0)
    plan = queue.next_plan(queue.sets.named(("n1", "n2")))
    plan.start(300.0, queue.sets.named(("n1",)))
    plan.wait(queue.jobs[0], queue.requests.of(queue.jobs[0]))
    assert {end.at_s - T0 for end in earliest(plan.planned_starts, queue.sets).values()} == {300.0}


def test_ends_within_a_span_count_as_the_last() -> None:
    blocked = pending("7", 3)
    for last_s, starts_s in ((99.0, 99.0), (101.0, ENDS_S)):
        jobs = [blocked, ends_at("80", "n3", ENDS_S), ends_at("81", "n4", last_s)]
        assert {at_s for at_s, _ in planned(jobs)[1].values()} == {starts_s}


def test_a_node_comes_free_when_the_last_job_on_it_must_end() -> None:
    blocked, first = pending("7", 3), ends_at("80", "n3", ENDS_S)
    for other, starts_s in (
        (ends_at("81", "n3", 500.0), {500.0}),
        (replace(ends_at("81", "n3", 500.0), time_limit_s=None), set[float]()),
        (replace(ends_at("81", "n3", 500.0), state=JobState.COMPLETING), {ENDS_S}),
    ):
        assert {at_s for at_s, _ in planned([blocked, first, other])[1].values()} == starts_s


def test_nobody_is_planned_into_a_reservation_or_beyond_the_window() -> None:
    blocked, other = pending("7", 3, limit_s=100.0), ends_at("80", "n3", ENDS_S)
    soon = Reservation(name="m", start_s=T0 + 120, end_s=T0 + 500, nodes=("n1",))
    assert {at_s for at_s, _ in planned([blocked, other], reservations=(soon,))[1].values()} == {
        500.0
    }
    plan, _ = planned([other], reservations=(soon,))
    assert plan.kept_off(121.0, is_in_reservation=False).bit_count() == 1
    assert plan.kept_off(121.0, is_in_reservation=True) == 0
    assert planned([blocked, other], plan_window_s=ENDS_S - 1.0)[1] == {}


def test_the_first_slot_is_taken_as_a_whole() -> None:
    plan, first = planned([pending("7", 3), ends_at("80", "n3", 90.0)], plan_resolution_s=60.0)
    assert first["n1"] == (90.0, "7")
    [(end, _)] = plan.planned_starts
    assert end.last_end_s == slot_begin_s(T0 + 90.0, 60.0) < end.at_s


def test_neighbours_of_the_shortest_row_that_is_long_enough() -> None:
    rows = 0b1110_1111_0110_0001
    assert neighbours(rows, 2) == 0b0110_0000
    assert neighbours(rows, 3) == 0b1110_0000_0000_0000
    assert neighbours(rows, 5) == 0b1111_0000_0001  # the longest, and of the next the shortest
    assert neighbours(rows, 99) == rows


@given(st.lists(st.booleans(), max_size=200), st.integers(min_value=0, max_value=210))
def test_the_simulated_slurm_chooses_the_same_neighbours(is_free: list[bool], count: int) -> None:
    nodes = sum(1 << position for position, free in enumerate(is_free) if free)
    chosen = neighbours(nodes, count)
    if count <= nodes.bit_count():
        assert chosen == slurms_neighbours(nodes, count)
        assert chosen.bit_count() == count
    else:
        assert chosen == nodes


def test_only_so_many_are_planned() -> None:
    jobs = [pending(str(k), 3, limit_s=10.0, priority=-float(k)) for k in range(60)]
    plan, _ = planned([*jobs, ends_at("80", "n3", ENDS_S)])
    assert plan.is_full
    assert isinstance(plan, BackfillPlan)
    assert len(plan._planned) == 50


# ---- what decisions make of it -------------------------------------------------------------


def blocked_look(*pilots: Job, ends_s: float) -> Snapshot:
    """A job waits for n1, which is idle or ours, and n2, which comes free."""
    nodes = with_state(idle_nodes(2), NodeState.ALLOCATED, "n2")
    return snapshot(nodes, [pending("7", 2), ends_at("80", "n2", ends_s), *pilots])


def test_a_pilot_is_asked_for_until_the_next_plan_needs_its_node() -> None:
    [claim] = Fold().decide(blocked_look(ends_s=1000.0), trainers=[record()]).claims
    assert (claim.node, claim.time_limit_s) == ("n1", 1000.0 - 60.0 - 30.0)


def test_a_pilot_that_waits_and_would_not_start_any_more_is_asked_for_anew() -> None:
    def gone(limit_s: float) -> set[str]:
        fold = Fold()
        fold.decide(blocked_look(ends_s=9000.0), trainers=[record()])
        mine = replace(pending("90", 1, limit_s=limit_s, required=("n1",)), pilot_id="p-n1")
        seen = blocked_look(mine, ends_s=1000.0)
        plan = fold.decide(seen, [pilot("n1", is_held=False)], [record()])
        return {release.pilot_id for release in plan.releases}

    assert gone(1000.0) == set()
    assert gone(1001.0) == {"p-n1"}
