"""Backfill's plans on shared nodes, worked out by hand as Slurm 22.05 makes them."""

from __future__ import annotations

from bftrainer.lab.site.shared import Remainder, ResourceLayout, TakenParts
from bftrainer.lab.site.shared_timeline import SharedTimeline
from bftrainer.lab.site.sharing import NodeCapacity, Share
from bftrainer.lab.site.timeline import EarliestStart

NODE = NodeCapacity(cpus=4, gpus=(("", 4),))
ONE, TWO, ALL = Share(cpus=1, gpus=1), Share(cpus=2, gpus=2), Share(cpus=4, gpus=4)
NOW_S = 1000.0
EVERY = 0b1111


def timeline(n_nodes: int, *running: tuple[float, Share | None, int]) -> SharedTimeline:
    """Return what backfill sees at 1,000 s: limits of running jobs, their shares, their nodes."""
    layout = ResourceLayout((NODE,) * n_nodes, (), is_least_loaded_first=False)
    left = Remainder(layout.capacity.copy())
    ends: list[tuple[float, TakenParts]] = []
    for end_s, share, nodes in running:
        taken = layout.take(layout.need(share, ""), nodes, left)
        left.take(taken)
        ends.append((end_s, taken))
    return SharedTimeline(NOW_S, left, ends, 60.0, layout)


def earliest(
    plan: SharedTimeline, share: Share | None, limit_s: float = 60.0, *, n_nodes: int = 1
) -> EarliestStart | None:
    """Return when and where a job would begin."""
    every = sum(1 << k for k in range(len(plan._layout.capacities)))
    return plan.earliest(n_nodes, limit_s, every, plan._layout.need(share, ""))


def closed(plan: SharedTimeline) -> list[tuple[float, float, int]]:
    """Return the slots and the nodes that are open in them."""
    return [(slot.begin_s, slot.end_s, slot.nodes) for slot in plan._slots]


def test_a_job_that_fits_begins_now_on_the_fullest_node() -> None:
    plan = timeline(2, (2000.0, TWO, 0b10))
    assert earliest(plan, TWO) == EarliestStart(NOW_S, 0b10)
    assert earliest(plan, ALL) == EarliestStart(NOW_S, 0b01)
    assert earliest(plan, None, n_nodes=2) == EarliestStart(2000, 0b11)


def test_limits_within_a_span_are_one_and_the_next_span_is_longer() -> None:
    """The first limit is at 1,010 s: spans end at 1,020 + 30 s, at 1,020 + 60 s and so on."""
    plan = timeline(3, (1010.0, ALL, 0b001), (1050.0, ALL, 0b010), (1051.0, ALL, 0b100))
    assert earliest(plan, ALL) == EarliestStart(1050, 0b001)
    assert earliest(plan, ALL, n_nodes=3) == EarliestStart(1051, 0b111)
    # The second span has them both.
    plan = timeline(3, (1010.0, ALL, 0b001), (1079.0, ALL, 0b010), (1080.0, ALL, 0b100))
    assert earliest(plan, ALL) == EarliestStart(1010, 0b001)
    assert earliest(plan, ALL, n_nodes=2) == EarliestStart(1080, 0b011)


def test_a_job_that_started_in_this_cycle_is_one_of_those_that_run() -> None:
    plan = timeline(1, (1010.0, TWO, 0b1))
    plan.start(NOW_S + 40.0, 0b1, plan._layout.need(TWO, ""))
    assert earliest(plan, ONE) == EarliestStart(1040, 0b1)  # both limits are in one span
    plan.start(NOW_S + 300.0, 0b1, plan._layout.need(ONE, ""))
    assert earliest(plan, ALL) == EarliestStart(1300, 0b1)


def test_a_plan_closes_whole_nodes_for_its_slots() -> None:
    plan = timeline(2)
    plan.close(1090.0, 1150.0, 0b01)
    assert closed(plan) == [
        (960.0, 1080.0, 0b11),
        (1080.0, 1140.0, 0b10),
        (1140.0, float("inf"), 3),
    ]
    # A limit that only touches the slot counts as reaching into it.
    assert earliest(plan, ONE, 79.0) == EarliestStart(NOW_S, 0b01)
    assert earliest(plan, ONE, 80.0) == EarliestStart(NOW_S, 0b10)
    assert plan.open_now(79.0) == 0b11
    assert plan.open_now(80.0) == 0b10
    # Two nodes for so long are open from the end of the plan on.
    assert earliest(plan, None, 80.0, n_nodes=2) == EarliestStart(1140, 0b11)


def test_a_plan_shorter_than_a_slot_has_one() -> None:
    plan = timeline(1)
    plan.close(1090.0, 1100.0, 0b1)
    assert closed(plan)[1] == (1080.0, 1140.0, 0)


def test_a_job_of_whole_nodes_that_starts_closes_them_from_the_first_slot_on() -> None:
    plan = timeline(2)
    plan.start(NOW_S + 150.0, 0b01, plan._layout.need(None, ""))
    assert closed(plan) == [(960.0, 1140.0, 0b10), (1140.0, float("inf"), 0b11)]


def test_where_a_plan_would_overlap_the_nodes_are_those_that_are_open_from_then_on() -> None:
    """At 1,070 s the first node has room, but it is planned for another job from 1,140 s on.

    That lies beyond a limit that begins now, so that it is seen only when the begin is known. A
    limit that strikes in the slot before, here until 1,199 s, is no overlap.
    """
    plan = timeline(2, (1070.0, ALL, 0b01), (1400.0, ALL, 0b10))
    plan.close(1140.0, 1200.0, 0b01)
    assert earliest(plan, ALL, 130.0) == EarliestStart(1200, 0b01)
    assert earliest(plan, ALL, 129.0) == EarliestStart(1070, 0b01)


def test_only_jobs_on_open_nodes_make_spans() -> None:
    """The first node is closed for long: its limit at 1,010 s does not begin the first span."""
    limits = ((1010.0, ALL, 0b001), (1055.0, ALL, 0b010), (1111.0, ALL, 0b100))
    plan = timeline(3, *limits)
    assert earliest(plan, ALL, n_nodes=2) == EarliestStart(1055, 0b011)
    plan.close(1000.0, 5000.0, 0b001)
    # The second node's span ends at 1,080 + 30 s; the third node is in the next.
    assert earliest(plan, ALL) == EarliestStart(1055, 0b010)
    assert earliest(plan, ALL, n_nodes=2) == EarliestStart(1111, 0b110)


def test_what_never_fits_has_no_start() -> None:
    plan = timeline(2, (1100.0, ALL, 0b11))
    assert earliest(plan, Share(cpus=5)) is None
    assert earliest(plan, None, n_nodes=3) is None
    assert plan.earliest(1, 60.0, 0, None) is None


def test_a_limit_that_is_overdue_strikes_in_a_second() -> None:
    assert earliest(timeline(1, (990.0, ALL, 0b1)), ONE) == EarliestStart(1001, 0b1)
