"""Where pilots come last, one may wait for the cycle that passes over its node anyhow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bftrainer.decide.inqueue import PASS_S
from bftrainer.decide.types import PilotView, Settings
from bftrainer.poll.snapshot import (
    Job,
    Node,
    NodeState,
    Reservation,
    SchedulerCycle,
    Snapshot,
)
from tests.support.snapshots import (
    T0,
    Fold,
    claimed,
    held,
    idle_nodes,
    pending,
    pilot,
    record,
    released,
    running,
    snapshot,
    with_state,
)

FOUR = idle_nodes(4)
BUSY = with_state(FOUR, NodeState.ALLOCATED, *(n.name for n in FOUR))
GONE = ("n1", "n2")
FREE = with_state(BUSY, NodeState.IDLE, *GONE)
REST = held("n3", "n4")
JOB = pending("7", 2, submit_s=T0 + 1)
NAMES = ("n1", "n2", "n3", "n4")


def seen(nodes: Sequence[Node], *jobs: Job, comes_last: bool = True) -> Snapshot:
    looked = snapshot(nodes, jobs, cycle_ended_s=T0 - 5)
    return replace(looked, pilots_come_last=comes_last)


def after_a_give_back(fold: Fold, *, comes_last: bool = True) -> None:
    """A job of two nodes has come, and n1 and n2 were given back for it."""
    fold.decide(seen(BUSY, comes_last=comes_last), held(*NAMES), [record()])
    looked = seen(BUSY, JOB, comes_last=comes_last)
    plan = fold.decide(looked, held(*NAMES), [record()], at_s=T0 + 1)
    assert released(plan) == set(GONE)


def ask_again(fold: Fold, at_s: float, pilots: Sequence[PilotView] = REST) -> set[str]:
    looked = replace(seen(FREE, JOB), taken_at_s=T0 + at_s)
    return claimed(fold.decide(looked, pilots, [record()], at_s=T0 + at_s))


def test_a_node_given_back_is_asked_for_once_the_main_scheduler_has_passed() -> None:
    fold = Fold()
    after_a_give_back(fold)
    assert ask_again(fold, 1.5) == set()
    assert ask_again(fold, 1.0 + PASS_S - 0.1) == set()
    assert ask_again(fold, 1.0 + PASS_S) == set(GONE)


def test_an_old_look_does_not_show_that_the_main_scheduler_has_passed() -> None:
    """Nobody announces that a job has started."""
    fold = Fold()
    after_a_give_back(fold)
    for taken_at_s, is_asked_for in ((1.9, False), (2.0, True)):
        looked = replace(seen(FREE, JOB), taken_at_s=T0 + taken_at_s)
        plan = fold.decide(looked, REST, [record()], at_s=T0 + 9.0)
        assert claimed(plan) == (set(GONE) if is_asked_for else set())
        assert plan.look_wanted_s == (None if is_asked_for else T0 + 1.0 + PASS_S)


def test_a_look_is_asked_for_only_where_pilots_may_wait() -> None:
    fold = Fold()
    after_a_give_back(fold, comes_last=False)
    looked = seen(FREE, JOB, comes_last=False)
    assert fold.decide(looked, REST, [record()], at_s=T0 + 9.0).look_wanted_s is None


def test_elsewhere_only_once_a_whole_cycle_has_passed() -> None:
    fold = Fold()
    after_a_give_back(fold, comes_last=False)
    plan = fold.decide(seen(FREE, JOB, comes_last=False), REST, [record()], at_s=T0 + 20)
    assert plan.claims == ()


def test_who_backs_off_waits_for_its_cycles() -> None:
    fold = Fold(settings=Settings(reserve_nodes_per_type=0, hold_off_cycles=2.0))
    after_a_give_back(fold)
    assert ask_again(fold, 20.0) == set()


def test_a_pilot_that_waits_is_in_nobodys_way_and_goes_when_the_node_is_taken() -> None:
    fold = Fold()
    after_a_give_back(fold)
    ask_again(fold, 5.0)
    waiting = [*(pilot(n, is_held=False, requested_s=T0 + 5) for n in GONE), *REST]
    for at_s in (6.0, 10.0, 20.0):
        plan = fold.decide(seen(FREE, JOB), waiting, [record()], at_s=T0 + at_s)
        assert (plan.releases, plan.claims) == ((), ())
    # Another job of the same size needs nodes of ours: these two are the first one's.
    second = pending("8", 2, submit_s=T0 + 21)
    plan = fold.decide(seen(FREE, JOB, second), waiting, [record()], at_s=T0 + 21)
    assert released(plan) == {"n3", "n4"}
    # The job has started on them.
    taken = seen(BUSY, running("7", *GONE))
    plan = fold.decide(taken, waiting, [record()], at_s=T0 + 30)
    assert released(plan) == set(GONE)
    assert {r.for_job for r in plan.releases} == {""}


def test_a_pilot_that_has_started_is_given_back_like_any_other() -> None:
    """Its agent may not have said hello yet: what counts is the state of the node."""
    fold = Fold()
    after_a_give_back(fold)
    ask_again(fold, 5.0)
    started = [*(pilot(n, is_held=False, requested_s=T0 + 5) for n in GONE), *REST]
    small = pending("9", 1, submit_s=T0 + 31)
    plan = fold.decide(seen(BUSY, small), started, [record()], at_s=T0 + 31)
    assert len(plan.releases) == 1
    assert plan.releases[0].for_job == "9"


# ---- tasks that follow each other ----------------------------------------------------------


def test_a_node_between_two_tasks_of_an_array_is_not_asked_for() -> None:
    """Each task that starts leaves room for the next one: the node was held off long ago."""
    fold = Fold()
    tasks = [pending(f"7_{k}", 1, submit_s=T0) for k in range(6)]
    for k in range(5):
        for after_s, nodes in ((0.0, BUSY), (2.9, FREE)):
            looked = seen(nodes, *tasks[k:], running(f"6_{k}", "n3", "n4"))
            plan = fold.decide(looked, (), [record()], at_s=T0 + 4.0 * k + after_s)
            assert claimed(plan) == set(), k
    # Nothing moves any more.
    later_s = T0 + 16.0 + 2.9 + PASS_S
    plan = fold.decide(replace(looked, taken_at_s=later_s), (), [record()], at_s=later_s)
    assert claimed(plan) == {"n1", "n2"}


def test_nodes_are_left_to_a_large_job_until_the_last_of_them_is_free() -> None:
    """It has not been passed over: it could not start yet."""
    fold = Fold()
    large = pending("7", 4, submit_s=T0)
    fold.decide(seen(BUSY, large), held(*NAMES), [record()])
    leaving = [pilot(n, is_leaving=True) for n in ("n3", "n4")]
    for at_s in (1.0, 5.0, 9.0):
        plan = fold.decide(seen(FREE, large), leaving, [record()], at_s=T0 + at_s)
        assert (plan.claims, plan.look_wanted_s) == ((), None), at_s
    for at_s, is_asked_for in ((10.0, False), (9.0 + PASS_S, True)):
        there = replace(seen(FOUR, large), taken_at_s=T0 + at_s)
        plan = fold.decide(there, (), [record()], at_s=T0 + at_s)
        assert (len(plan.claims) == 4) == is_asked_for, at_s


# ---- who waits for a cycle -----------------------------------------------------------------


def _cycle(at_s: float) -> SchedulerCycle:
    return SchedulerCycle(ended_s=T0 + at_s, began_s=T0 + at_s)


def looked(at_s: float, nodes: Sequence[Node], *jobs: Job) -> Snapshot:
    """The next cycle begins at T0 + 25."""
    return replace(seen(nodes, *jobs), taken_at_s=T0 + at_s, cycle=_cycle(-5.0))


# For nine nodes nobody can make room: all after it are backfill's.
BLOCKED = pending("5", 9, submit_s=T0 - 50)


@pytest.mark.parametrize(
    ("at_s", "head", "is_asked_for"),
    [
        (22.9, [BLOCKED], False),
        (23.0, [BLOCKED], True),
        (24.9, [BLOCKED], True),
        (24.4, [], False),  # the main scheduler is about to start the job there
        (24.5, [], True),  # it did not
    ],
)
def test_shortly_before_the_cycle_one_pass_is_enough(
    at_s: float, head: list[Job], *, is_asked_for: bool
) -> None:
    """Who is not in the queue by then waits a cycle longer."""
    fold = Fold()
    jobs = [*head, JOB]
    nine = idle_nodes(9)
    full = with_state(nine, NodeState.ALLOCATED, *(n.name for n in nine))
    freed = with_state(full, NodeState.IDLE, *GONE)
    fold.decide(looked(21.5, full, *jobs), held(*NAMES), [record()], at_s=T0 + 21.5)
    taken_at_s = 21.8 if head else at_s
    plan = fold.decide(looked(taken_at_s, freed, *jobs), REST, [record()], at_s=T0 + at_s)
    assert claimed(plan) == ({"n1", "n2"} if is_asked_for else set())


def _bound(start_s: float, *nodes: str) -> Job:
    """A job too large to start, planned on nodes of ours or free ones."""
    return pending("5", 9, submit_s=T0 - 50, start_s=T0 + start_s, planned=nodes)


HASTY = Settings(reserve_nodes_per_type=0, min_gap_s=60.0, gap_margin_s=10.0)


@pytest.mark.parametrize(
    ("start_s", "limits_s"),
    [
        (34.9, None),  # the job may start before a pilot could
        (36.0, (120.0, 60.0)),
        (94.0, (120.0, 60.0)),  # too short by now: 10 s of margin, 25 s until the cycle
        (100.0, (65.0, 60.0)),
        (1000.0, (965.0, 60.0)),
    ],
)
def test_where_the_gap_is_too_short_a_short_pilot_waits_for_the_plan_to_move(
    start_s: float, limits_s: tuple[float, float] | None
) -> None:
    fold = Fold(settings=HASTY)
    plan = fold.decide(looked(0, FREE, _bound(start_s, "n1")), REST, [record()])
    found = {c.node: (c.time_limit_s, c.or_time_limit_s) for c in plan.claims}
    assert found.get("n1") == limits_s


def test_elsewhere_the_gap_of_the_plan_counts() -> None:
    fold = Fold(settings=HASTY)
    there = replace(looked(0, FREE, _bound(94.0, "n1")), pilots_come_last=False)
    assert "n1" not in claimed(fold.decide(there, REST, [record()]))


def test_nobody_waits_for_a_reservation_to_move() -> None:
    fold = Fold(settings=HASTY)
    maintenance = Reservation(name="m", start_s=T0 + 94, end_s=T0 + 9000, nodes=("n1",))
    there = replace(looked(0, FREE, _bound(900.0, "n2")), reservations=(maintenance,))
    assert "n1" not in claimed(fold.decide(there, REST, [record()]))


def test_a_pilot_that_waits_for_the_plan_to_move_stays_until_the_job_may_start() -> None:
    fold = Fold(settings=HASTY)
    jobs = (_bound(94.0, "n1"),)
    fold.decide(looked(0, FREE, *jobs), REST, [record()])
    short = replace(pilot("n1", is_held=False), shortest_limit_s=60.0)
    for at_s in (1.0, 20.0, 27.0, 50.0):
        there = replace(looked(at_s, FREE, *jobs), cycle=_cycle(at_s - 4.0))
        plan = fold.decide(there, [short, *REST], [record()], at_s=T0 + at_s)
        assert "n1" not in released(plan), at_s
    last = replace(looked(60.0, FREE, *jobs), cycle=_cycle(56.0))  # the next one is too late
    plan = fold.decide(last, [short, *REST], [record()], at_s=T0 + 84.0)
    assert "n1" in released(plan)


@pytest.mark.parametrize(
    ("at_s", "limit_s", "start_s", "is_dropped"),
    [
        (10.0, 3600.0, 1000.0, True),
        (2.9, 3600.0, 1000.0, False),  # a look so young may not show that it has started
        (10.0, 960.0, 1000.0, False),  # fits: from the cycle at 25 s on
        (10.0, 960.0, 980.0, True),
        (27.0, 960.0, 1000.0, False),  # the cycle at 25 s may just be starting it
        (29.0, 960.0, 1000.0, True),  # it did not
        (10.0, 119.0, 100.0, False),  # as short as any
    ],
)
def test_a_pilot_whose_limit_has_become_too_long_is_asked_for_again(
    at_s: float, limit_s: float, start_s: float, *, is_dropped: bool
) -> None:
    """The job that bounds it came after it, or its plan has moved."""
    fold = Fold(settings=HASTY)
    waits = replace(pilot("n1", is_held=False), shortest_limit_s=limit_s)
    fold.decide(looked(0, FREE), [waits, *REST], [record()])
    there = looked(at_s, FREE, _bound(start_s, "n1"))
    if at_s > 25.0:
        there = replace(there, cycle=_cycle(25.0))
    plan = fold.decide(there, [waits, *REST], [record()], at_s=T0 + at_s)
    assert ("n1" in released(plan)) == is_dropped
    if is_dropped:
        assert "too long" in next(r.reason for r in plan.releases if r.node == "n1")
        plan = fold.decide(there, REST, [record()], at_s=T0 + at_s + 0.5)
        assert "n1" in claimed(plan)
