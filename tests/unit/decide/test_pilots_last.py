"""Where pilots come last, one may wait for the cycle that passes over its node anyhow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from bftrainer.decide.pool import PASS_S
from bftrainer.model.cluster import Job, Node, NodeState, Snapshot
from bftrainer.model.decision import PilotView, Settings
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
    for taken_at_s, is_asked_for in ((3.9, False), (4.0, True)):
        looked = replace(seen(FREE, JOB), taken_at_s=T0 + taken_at_s)
        plan = fold.decide(looked, REST, [record()], at_s=T0 + 9.0)
        assert claimed(plan) == (set(GONE) if is_asked_for else set())


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
    """Each task that starts leaves room for the next one: the first was long ago."""
    fold = Fold()
    tasks = [pending(f"7_{k}", 1, submit_s=T0) for k in range(7)]
    for k in range(5):
        busy = [running(f"7_{n}", name) for n, name in enumerate(NAMES, k + 10)]
        for after_s, nodes, runs in ((0.0, BUSY, busy), (2.9, FREE, busy[2:])):
            at_s = T0 + 4.0 * k + after_s
            there = replace(seen(nodes, *tasks[k:], *runs), taken_at_s=at_s)
            plan = fold.decide(there, (), [record()], at_s=at_s)
            assert claimed(plan) == set(), k
    # Nothing moves any more.
    later_s = T0 + 16.0 + 2.9 + PASS_S
    plan = fold.decide(replace(there, taken_at_s=later_s), (), [record()], at_s=later_s)
    assert claimed(plan) == set(GONE)


@pytest.mark.parametrize(("start_s", "limit_s"), [(94.0, None), (100.0, 60.0), (1000.0, 960.0)])
def test_the_gap_that_is_printed_counts(start_s: float, limit_s: float | None) -> None:
    """10 s of margin, up to 30 s until the next cycle: what is left must be worth a claim."""
    hasty = Settings(reserve_nodes_per_type=0, min_gap_s=60.0, gap_margin_s=10.0)
    head = pending("5", 9, submit_s=T0 - 50, start_s=T0 + start_s, planned=("n1",))
    plan = Fold(settings=hasty).decide(seen(FREE, head), REST, [record()])
    assert {c.node: c.time_limit_s for c in plan.claims}.get("n1") == limit_s


@pytest.mark.parametrize(("shortest_s", "is_claimed"), [(0.0, True), (60.0, False)])
def test_no_pilot_is_asked_for_that_the_batch_system_counts_too_short(
    shortest_s: float, *, is_claimed: bool
) -> None:
    """Slurm counts whole minutes: 50 s are left for a pilot here, if it starts at once."""
    hasty = Settings(reserve_nodes_per_type=0, min_gap_s=20.0, gap_margin_s=10.0, cycle_s=0.0)
    head = pending("5", 9, submit_s=T0 - 50, start_s=T0 + 60.0, planned=("n1",))
    look = replace(seen(FREE, head), shortest_limit_s=shortest_s)
    plan = Fold(settings=hasty).decide(look, REST, [record()])
    assert ("n1" in claimed(plan)) is is_claimed
