"""The plan that backfill makes next: slots, neighbours, and what moves when a job has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.decide.next_plan import replanned
from bftrainer.decide.nodesets import NodeSets
from bftrainer.decide.requests import Requests, Site
from bftrainer.decide.row import Row, neighbours
from bftrainer.decide.slots import Slots
from bftrainer.poll.snapshot import Job, JobState, NodeState, Reservation, Snapshot
from tests.support.snapshots import T0, idle_nodes, node, pending, snapshot

SLOT_S = 60.0
LAST = pending("99", 1)
NOW_S = T0 // SLOT_S * SLOT_S  # the begin of a slot


def running(job_id: str, left_s: float, *names: str) -> Job:
    job = pending(job_id, len(names), limit_s=left_s + 10.0)
    return replace(job, state=JobState.RUNNING, start_s=NOW_S - 10.0, nodes=names)


def plans(
    seen: Snapshot, *queue: Job, slot_s: float = SLOT_S, window_s: float | None = None
) -> dict[str, tuple[float | None, tuple[str, ...]]]:
    """When, counted from now, and where each job of the queue is planned, and one behind it."""
    queue = (*queue, LAST)
    seen = replace(
        seen,
        jobs=(*(seen.jobs or ()), *queue),
        plan_resolution_s=slot_s,
        plan_window_s=window_s,
    )
    sets = NodeSets.of(seen.nodes or ())
    in_use = {name for job in seen.jobs or () for name in job.nodes}
    usable = sets.named(n.name for n in sets.nodes if n.name not in in_use)
    requests = Requests(Site.of(seen, sets, usable, NOW_S))
    found = replanned(queue, seen, requests)
    assert [job.job_id for job in found] == [job.job_id for job in queue]
    return {
        job.job_id: (None if job.start_s is None else job.start_s - NOW_S, job.planned_nodes)
        for job in found[:-1]
    }


# ---- the queue -------------------------------------------------------------------------


def test_who_is_planned_where_in_the_next_cycle() -> None:
    seen = snapshot(idle_nodes(4), [running("1", 600.0, "n1", "n2")])
    head, short, long = (
        pending("2", 3, limit_s=300.0),
        pending("3", 1, limit_s=600.0),
        pending("4", 2, limit_s=660.0),
    )
    assert plans(seen, head, short, long) == {
        "2": (600.0, ("n1", "n2", "n3")),
        "3": (None, ()),  # starts: it is over when the head does
        "4": (900.0, ("n1", "n2")),
    }


def test_a_job_that_ended_moves_the_plan_and_lets_another_start() -> None:
    """What the last cycle planned still says that the second one has to wait."""
    first, second = running("1", 600.0, "n1", "n2"), running("2", 900.0, "n3")
    of_last = ("n1", "n2", "n4")
    head = pending("3", 3, limit_s=60.0, start_s=NOW_S + 600.0, planned=of_last)
    later = pending("4", 1, limit_s=700.0)
    before = plans(snapshot(idle_nodes(4), [first, second]), head, later)
    assert before == {"3": (600.0, ("n1", "n2", "n4")), "4": (660.0, ("n4",))}
    after = plans(snapshot(idle_nodes(4), [first]), head, later)
    assert after == {"3": (600.0, ("n1", "n2", "n3")), "4": (None, ())}


def test_ends_that_are_close_are_one() -> None:
    """The head gets its nodes at the last of them, though two would do."""
    ends = [running(str(n), left_s, f"n{n}") for n, left_s in ((1, 100.0), (2, 110.0), (3, 115.0))]
    seen = snapshot(idle_nodes(3), ends)
    assert plans(seen, pending("9", 2))["9"] == (115.0, ("n1", "n2"))
    ends[2] = running("3", 400.0, "n3")
    assert plans(snapshot(idle_nodes(3), ends), pending("9", 2))["9"] == (110.0, ("n1", "n2"))


def test_beyond_the_window_nothing_is_planned() -> None:
    seen = snapshot(idle_nodes(2), [running("1", 600.0, "n1")])
    assert plans(seen, pending("2", 2), window_s=601.0)["2"][0] == 600.0
    assert plans(seen, pending("2", 2), window_s=599.0)["2"] == (None, ())


def test_who_is_too_large_is_in_nobodys_way() -> None:
    seen = snapshot(idle_nodes(2), [running("1", 600.0, "n1")])
    found = plans(seen, pending("2", 3), pending("3", 1, limit_s=7200.0))
    assert found == {"2": (None, ()), "3": (None, ())}


def test_without_a_limit_a_job_fits_every_gap_and_never_ends() -> None:
    seen = snapshot(idle_nodes(2), [running("1", 600.0, "n1")])
    head, endless, last = pending("2", 2), pending("3", 1, limit_s=None), pending("4", 2)
    assert plans(seen, head, endless) == {"2": (600.0, ("n1", "n2")), "3": (None, ())}
    assert plans(seen, endless, last) == {"3": (None, ()), "4": (None, ())}


@pytest.mark.parametrize(
    "odd", [{"unclear": "contiguous nodes"}, {"features": "[a*1&b*1]"}, {"required_nodes": ("n1",)}]
)
def test_a_plan_that_is_not_ours_to_make_stands(odd: dict[str, object]) -> None:
    job = replace(pending("2", 2, limit_s=300.0), **odd)  # type: ignore[arg-type]  # by name
    planned = replace(job, start_s=NOW_S + 120.0, planned_nodes=("n1", "n2"))
    nodes = [node("n1", features=("a",)), node("n2", features=("b",)), node("n3")]
    later = pending("3", 3, limit_s=180.0)
    found = plans(snapshot(nodes), planned, later)
    assert found["2"] == (120.0, ("n1", "n2"))
    assert found["3"] == (420.0, ("n1", "n2", "n3"))


def test_without_slots_the_plan_is_another_schedulers() -> None:
    job = replace(pending("2", 1), start_s=NOW_S + 5.0, planned_nodes=("n2",))
    assert plans(snapshot(idle_nodes(2)), job, slot_s=0.0)["2"] == (5.0, ("n2",))


def test_what_cannot_start_keeps_what_it_has_and_closes_nothing() -> None:
    held = replace(pending("2", 2, limit_s=600.0), reason="JobHeldUser")
    assert plans(snapshot(idle_nodes(2)), held, pending("3", 2))["3"] == (None, ())


def test_nodes_that_are_being_left_are_free_and_those_of_a_reservation_are_not() -> None:
    nodes = [node("n1", NodeState.COMPLETING), node("n2")]
    assert plans(snapshot(nodes), pending("2", 2))["2"] == (None, ())
    until = Reservation(name="r", start_s=NOW_S + 60, end_s=NOW_S + 1000, nodes=("n2",))
    seen = snapshot(idle_nodes(2), [running("1", 300.0, "n1")], reservations=[until])
    assert plans(seen, pending("2", 1, limit_s=300.0))["2"] == (300.0, ("n1",))


def test_nobody_is_behind_a_single_job() -> None:
    job = pending("2", 1, start_s=T0 + 5.0, planned=("n2",))
    seen = replace(snapshot(idle_nodes(2), [job]), plan_resolution_s=SLOT_S)
    sets = NodeSets.of(seen.nodes or ())
    assert replanned([job], seen, Requests(Site.of(seen, sets, 0, T0))) == [job]


# ---- slots -----------------------------------------------------------------------------


def test_begin_and_end_are_rounded_down_and_a_plan_has_a_slot_at_least() -> None:
    slots = Slots(0.0, SLOT_S)
    slots.close(119.0, 121.0, 0b01)
    assert slots.are_open(0.0, 119.9, 0b01), "its end is rounded down to 60"
    assert not slots.are_open(0.0, 120.0, 0b01)
    assert slots.are_open(120.0, 500.0, 0b01)
    assert slots.are_open(60.0, 120.0, 0b10)


def test_when_to_ask_again() -> None:
    slots = Slots(0.0, SLOT_S)
    slots.close(60.0, 120.0, 0b011)
    slots.close(180.0, 240.0, 0b100)
    assert slots.open_during(0.0, 59.0, 0b111) == (0b111, 120.0)
    assert slots.open_during(0.0, 60.0, 0b111) == (0b100, 120.0), "the slot of its end counts"
    assert slots.open_during(120.0, 400.0, 0b111) == (0b011, 240.0)
    assert slots.open_during(240.0, 1e9, 0b111) == (0b111, None)
    slots.close(0.0, 60.0, 0b011)  # one span with the next, which is like it
    assert slots.open_during(0.0, 10.0, 0b111) == (0b100, 120.0)
    slots.close(240.0, float("inf"), 0b111)
    assert slots.open_during(240.0, 1e9, 0b111) == (0, None)


# ---- neighbours ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("some", "count", "chosen"),
    [
        (0b0111_0011, 2, 0b0000_0011),  # the shortest row that is long enough
        (0b0111_0011, 3, 0b0111_0000),
        (0b0111_0111, 2, 0b0000_0011),  # of equals the first
        (0b0111_0011, 4, 0b0111_0001),  # all of the longest, then as before
        (0b1101_1011, 5, 0b0101_1011),  # three rows of two: the first, the second, one of the last
        (0b1, 1, 0b1),
    ],
)
def test_neighbours(some: int, count: int, chosen: int) -> None:
    assert neighbours(some, count) == chosen


def test_the_row_is_the_looks_order_not_that_of_names() -> None:
    nodes = idle_nodes(11)  # by name n10 comes before n2
    row = Row.of(nodes)
    sets = NodeSets.of(nodes)
    assert row.names(neighbours(row.of_set(sets.named(["n2", "n1", "n10"]), sets), 2)) == (
        "n1",
        "n2",
    )
