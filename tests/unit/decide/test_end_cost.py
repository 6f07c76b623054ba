"""What ends and starts of pilots cost, from looks, and what decisions make of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.decide import end_cost
from bftrainer.model.cluster import Job, JobState, Node, NodeState
from bftrainer.model.decision import Ending, Ends, Memory, PilotView, Settings
from tests.support.snapshots import (
    T0,
    Fold,
    claimed,
    held,
    idle_nodes,
    node,
    pending,
    pilot,
    record,
    released,
    running,
    snapshot,
    with_state,
)

SLOW = Memory(ends=Ends(took_s=(20.0, 20.0, 20.0)))
FREE = Settings(reserve_nodes_per_type=0)


def _of_pilot(name: str, state: JobState, start_s: float | None = None) -> Job:
    return replace(running(f"j-{name}", name), pilot_id=f"p-{name}", state=state, start_s=start_s)


def _nodes(state: NodeState) -> tuple[Node, ...]:
    return with_state(idle_nodes(2), state, "n1")


def _released_at_t0(*, is_held: bool = True) -> Fold:
    """n1 has just been given back for a job that is planned on it."""
    fold = Fold()
    one = pilot("n1", is_held=is_held, end_s=T0 + 999 if is_held else None)
    due = pending("7", 1, start_s=T0 + 1, planned=("n1",))
    plan = fold.decide(snapshot(_nodes(NodeState.ALLOCATED), [due]), [one], [record(n_max=1)])
    assert released(plan) == {"n1"}
    return fold


def _look(fold: Fold, after_s: float, state: NodeState, *jobs: Job, is_new: bool = True) -> None:
    seen = snapshot(_nodes(state), jobs, at_s=T0 + after_s)
    fold.decide(seen, at_s=T0 + after_s, is_new=is_new)


def _took_s(fold: Fold) -> list[float]:
    return list(fold.memory.ends.took_s)


@pytest.mark.parametrize("back", [NodeState.IDLE, NodeState.PLANNED, NodeState.ALLOCATED])
def test_an_end_lasts_until_a_look_shows_the_node_usable(back: NodeState) -> None:
    fold = _released_at_t0()
    _look(fold, 1.0, NodeState.ALLOCATED, _of_pilot("n1", JobState.RUNNING))
    _look(fold, 9.0, NodeState.COMPLETING)
    _look(fold, 19.0, NodeState.DOWN)  # an epilog so long that the adapter has given it up
    _look(fold, 20.0, NodeState.IDLE, is_new=False)  # no look of its own
    assert _took_s(fold) == []
    _look(fold, 21.0, back)
    assert _took_s(fold) == [19.0]  # by the last look that showed it
    assert fold.memory.ends.ending == {}
    assert end_cost.end_cost_s(fold.memory) == 19.0


def test_two_ends_that_one_look_shows_are_noted_in_the_same_order_again() -> None:
    """A memory that was journalled comes back in the order of its keys."""
    ends = {
        name: Ending(pilot_id=f"p-{name}", asked_s=T0, busy_s=T0 + busy_s)
        for name, busy_s in (("n2", 9.0), ("n1", 5.0))
    }
    noted = []
    for one in (ends, dict(sorted(ends.items()))):
        fold = Fold(memory=Memory(ends=Ends(ending=one)))
        _look(fold, 10.0, NodeState.IDLE)
        noted.append(_took_s(fold))
    assert noted == [[5.0, 9.0]] * 2


def test_looks_that_are_seldom_do_not_make_an_end_long() -> None:
    fold = _released_at_t0()
    _look(fold, 2.0, NodeState.COMPLETING)
    _look(fold, 62.0, NodeState.IDLE)
    assert end_cost.end_cost_s(fold.memory) == 0.0


def test_a_look_that_began_before_the_order_shows_nothing() -> None:
    fold = _released_at_t0()
    _look(fold, -0.5, NodeState.IDLE)
    assert _took_s(fold) == []
    _look(fold, 1.0, NodeState.IDLE)
    assert _took_s(fold) == [0.0]
    assert end_cost.end_cost_s(fold.memory) == 0.0


def test_a_job_that_the_controller_holds_does_not_hold_its_node() -> None:
    fold = _released_at_t0()
    waits = _of_pilot("n1", JobState.COMPLETING)
    _look(fold, 1.0, NodeState.ALLOCATED, waits)  # it was left between node and job
    _look(fold, 4.0, NodeState.COMPLETING, waits)
    _look(fold, 6.0, NodeState.ALLOCATED, waits)
    _look(fold, 40.0, NodeState.ALLOCATED, waits)
    _look(fold, 41.0, NodeState.IDLE)
    assert _took_s(fold) == [4.0]


@pytest.mark.parametrize("state", [NodeState.DRAINED, NodeState.RESERVED])
def test_a_node_that_is_taken_out_of_use_measures_nothing(state: NodeState) -> None:
    fold = _released_at_t0()
    _look(fold, 5.0, NodeState.COMPLETING)
    _look(fold, 6.0, state)
    _look(fold, 600.0, NodeState.IDLE)
    assert fold.memory.ends == Ends()


def test_what_hung_says_nothing_of_the_next() -> None:
    fold = _released_at_t0()
    _look(fold, end_cost.MOST_S + 1.0, NodeState.DOWN)
    _look(fold, end_cost.MOST_S + 2.0, NodeState.IDLE)
    assert fold.memory.ends == Ends()


def test_the_end_of_a_pilot_that_the_batch_system_asked_itself_is_measured() -> None:
    fold, runs = Fold(), pilot("n1", end_s=T0 + 999)
    fold.decide(snapshot(_nodes(NodeState.ALLOCATED)), [runs])
    left = replace(runs, is_held=False, is_leaving=True)
    fold.decide(snapshot(_nodes(NodeState.ALLOCATED)), [left], at_s=T0 + 10.0, is_new=False)
    seen = snapshot(_nodes(NodeState.COMPLETING), at_s=T0 + 29.0)
    fold.decide(seen, [left], at_s=T0 + 29.0)
    _look(fold, 31.0, NodeState.ALLOCATED)
    assert _took_s(fold) == [19.0]


def test_a_pilot_that_had_not_started_has_no_end() -> None:
    assert _released_at_t0(is_held=False).memory.ends.ending == {}


def test_the_last_ends_count_and_one_that_hung_does_not_decide() -> None:
    took_s = (*(5.0,) * end_cost.REMEMBERED, *(20.0,) * 9, 800.0, *(20.0,) * 5)
    fold = _released_at_t0()
    fold.memory = replace(fold.memory, ends=replace(fold.memory.ends, took_s=took_s))
    _look(fold, 1.0, NodeState.IDLE)
    assert len(fold.memory.ends.took_s) == end_cost.REMEMBERED
    assert end_cost.end_cost_s(fold.memory) == 20.0


@pytest.mark.parametrize("is_seen_first", [False, True])
def test_a_start_lasts_until_the_agent_comes(*, is_seen_first: bool) -> None:
    """Whether a look or the agent is first."""
    fold, waits = Fold(), pilot("n1", is_held=False)
    runs = _of_pilot("n1", JobState.RUNNING, start_s=T0 + 10)

    def decide(at_s: float, one: PilotView, *jobs: Job, is_new: bool = True) -> None:
        seen = snapshot(_nodes(NodeState.ALLOCATED), jobs, at_s=at_s)
        fold.decide(seen, [one], [record(n_max=1)], at_s=at_s, is_new=is_new)

    decide(T0, waits, _of_pilot("n1", JobState.PENDING))
    if is_seen_first:
        decide(T0 + 12, replace(waits, end_s=T0 + 999), runs)
    came = replace(waits, is_held=True)
    decide(T0 + 17, came, *([runs] if is_seen_first else []), is_new=False)
    decide(T0 + 40, replace(came, end_s=T0 + 999), runs)
    decide(T0 + 50, replace(came, end_s=T0 + 999), runs)
    assert fold.memory.ends == Ends(joined_s=(7.0,))
    assert end_cost.measured(fold.memory, FREE).start_s == 7.0


def test_a_planned_start_is_served_earlier_by_what_an_end_costs() -> None:
    settings = replace(FREE, harm_slo_s=60.0)
    due = pending("7", 1, start_s=T0 + settings.gap_margin_s + 19, planned=("n1",))
    seen = snapshot(_nodes(NodeState.ALLOCATED), [due])

    def given_back(memory: Memory) -> set[str]:
        fold = Fold(settings=settings, memory=memory)
        return released(fold.decide(seen, [pilot("n1", end_s=T0 + 999)], [record(n_max=1)]))

    assert given_back(Memory()) == set()
    assert given_back(Memory(ends=Ends(took_s=(4.9, 4.9)))) == set()
    assert given_back(SLOW) == {"n1"}


# ---- longer than promised ----------------------------------------------------------------


@pytest.mark.parametrize(("promise_s", "taken"), [(1.0, {"n1"}), (30.0, {"n1", "n2"})])
def test_nodes_on_which_a_waiting_job_may_start_are_left_alone(
    promise_s: float, taken: set[str]
) -> None:
    settings = replace(FREE, harm_slo_s=promise_s, reserve_extra_nodes=-(promise_s < 20.0))
    nodes = (node("n1", partitions=("a",)), node("n2", partitions=("b",)), *_busy_of_b())
    fold = Fold(settings=settings, memory=SLOW)
    plan = fold.decide(snapshot(nodes, [pending("7", 2, partition="b")]), trainers=[record()])
    assert claimed(plan) == taken
    if "n2" not in taken:
        assert plan.not_used["n2"].startswith("Job 7 may start on it, and a node comes back only")


def _busy_of_b() -> tuple[Node, ...]:
    """One free node more and the job could start."""
    return (node("n3", NodeState.ALLOCATED, partitions=("b",)),)


@pytest.mark.parametrize(
    "job",
    [
        pending("7", 4),  # there are three
        pending("7", 2, features="no-such"),
        pending("7", 2, is_entitled=False, reason="Dependency"),
        pending("7", 3, start_s=T0 + 5000, planned=("n3",)),  # that is when it needs them
    ],
)
def test_a_job_that_cannot_start_soon_keeps_nothing_free(job: Job) -> None:
    settings = replace(FREE, reserve_extra_nodes=-1)
    nodes = [
        replace(n, features=("f",)) for n in with_state(idle_nodes(3), NodeState.ALLOCATED, "n3")
    ]
    plan = Fold(settings=settings, memory=SLOW).decide(snapshot(nodes, [job]), trainers=[record()])
    assert claimed(plan) == {"n1", "n2"}


def test_a_node_that_is_ours_already_stays() -> None:
    nodes = with_state(idle_nodes(3), NodeState.ALLOCATED, "n1", "n2", "n3")
    settings = replace(FREE, reserve_extra_nodes=-1)
    fold = Fold(settings=settings, memory=SLOW)
    plan = fold.decide(snapshot(nodes, [pending("7", 3)]), held("n1", "n2"), [record()])
    assert set(plan.assignment) == {"n1", "n2"}


@pytest.mark.parametrize(("promise_s", "free"), [(1.0, 2), (30.0, 1)])
def test_one_node_more_stays_free_for_those_who_come_at_once(promise_s: float, free: int) -> None:
    settings = Settings(harm_slo_s=promise_s)
    plan = Fold(settings=settings, memory=SLOW).decide(snapshot(idle_nodes(5)), trainers=[record()])
    assert len(plan.reserve) == free
    assert len(claimed(plan)) == 5 - free
