"""What the allocation is asked, and who keeps which nodes of those that nobody trains on."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import Context
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import DecisionInput, Joining, Memory, PilotView, Settings
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord
from milp.problem import Allocation, Problem, ProblemNode
from milp.worth import allocation_value
from tests.support.policies import Scripted
from tests.support.snapshots import (
    T0,
    Fold,
    claimed,
    held,
    idle_nodes,
    node_names,
    pilot,
    record,
    released,
    snapshot,
    with_state,
)


def _waiting(*names: str) -> tuple[PilotView, ...]:
    return tuple(pilot(name, is_held=False) for name in names)


def test_what_trains_pauses_and_not_what_is_on_its_way() -> None:
    """Two nodes train and eight pilots wait: an eleventh node costs a pause of two."""
    names = node_names(11)
    fold = Fold(
        memory=Memory(assignment=dict.fromkeys(names[:10], "t1"), idle_seen={"n11": 3}),
    )
    costs = MeasuredCosts(
        rescale_up_s=60.0,
        rescale_down_s=30.0,
        samples_per_s_by_size=((1, 100.0), (2, 200.0)),
    )
    plan = fold.decide(
        snapshot(with_state(idle_nodes(11), NodeState.ALLOCATED, "n1", "n2")),
        [*held("n1", "n2"), *_waiting(*names[2:10])],
        [record(n_max=32, costs=costs)],
        training={"n1": "t1", "n2": "t1"},
    )
    [trainer] = fold.policy.problems[-1].trainers
    assert trainer.current == trainer.settled == ("n1", "n2")
    assert claimed(plan) == {"n11"}


def _two_trainers() -> tuple[TrainerRecord, TrainerRecord]:
    return record("t1", n_max=2), record("t2", n_max=2)


@pytest.mark.parametrize("is_held", [False, True])
def test_nodes_on_their_way_to_a_trainer_stay_its_own(*, is_held: bool) -> None:
    """Nodes that sort before them turn idle; and one of two trainers trains already."""
    fold = Fold(settings=Settings(reserve_nodes_per_type=0, p_jmax=2))
    planned = {"n4": "t1", "n5": "t1", "n6": "t2", "n7": "t2"}
    fold.memory = Memory(assignment=planned, idle_seen=dict.fromkeys(node_names(3), 3))
    state = NodeState.ALLOCATED if is_held else NodeState.IDLE
    nodes = with_state(idle_nodes(7), state, *planned)
    pilots = [
        pilot(name, is_held=is_held, end_s=T0 + 9000 if is_held else None) for name in planned
    ]
    for training in ({}, {"n4": "t1"}, {"n6": "t2", "n5": "t1"}):
        plan = fold.decide(snapshot(nodes), pilots, _two_trainers(), training=training)
        assert plan.assignment == planned
        assert (plan.claims, plan.releases) == ((), ())


# ---- who goes --------------------------------------------------------------------------------


def _rates(*per_s: float) -> MeasuredCosts:
    return MeasuredCosts(samples_per_s_by_size=tuple(enumerate(per_s, 1)))


TRAINERS = (
    record("t1", n_max=3, costs=_rates(100.0, 200.0, 300.0)),
    record("t2", n_max=2, costs=_rates(100.0, 101.0)),  # to which a second node is no use
)
HAVE = {"n1": "t1", "n2": "t1", "n3": "t1", "n4": "t2", "n5": "t2"}


def _decide(fold: Fold, trainers: Sequence[TrainerRecord] = TRAINERS) -> set[str]:
    fold.memory = Memory(assignment=HAVE)
    seen = snapshot(with_state(idle_nodes(5), NodeState.ALLOCATED, *HAVE))
    return released(fold.decide(seen, held(*HAVE), trainers, training=HAVE))


def test_the_reserve_takes_what_costs_the_trainers_least() -> None:
    gone = _decide(Fold(settings=Settings(reserve_nodes_per_type=1)))
    assert len(gone) == 1
    assert gone < {"n4", "n5"}


def test_a_daemon_that_backs_off_gives_up_what_costs_the_trainers_least() -> None:
    gone = _decide(Fold(settings=Settings(reserve_nodes_per_type=0, max_held_nodes=4)))
    assert len(gone) == 1
    assert gone < {"n4", "n5"}


def test_the_policys_limit_gives_up_what_costs_the_trainers_least_and_says_so() -> None:
    gone = _decide(Fold(settings=Settings(reserve_nodes_per_type=0, max_nodes=4)))
    assert len(gone) == 1
    assert gone < {"n4", "n5"}


def test_the_smaller_of_both_limits_counts() -> None:
    settings = Settings(reserve_nodes_per_type=0, max_nodes=4, max_held_nodes=3)
    assert len(_decide(Fold(settings=settings))) == 2


def test_decisions_keep_nothing_of_nodes_whose_time_runs_out() -> None:
    """The time left is another at every decision: to remember it would only fill the memory."""
    names = node_names(8)
    fold = Fold(memory=Memory(assignment=dict.fromkeys(names, "t1")))
    pilots = [pilot(name, end_s=T0 + 9000) for name in names]
    nodes = snapshot(with_state(idle_nodes(8), NodeState.ALLOCATED, *names))
    before = _alive()
    for at in range(200):
        training = dict.fromkeys(names, "t1")
        fold.decide(nodes, pilots, [record(n_max=8)], at_s=T0 + at, training=training)
        assert fold.policy.problems.pop().nodes[0].expected_remaining_s is not None
    assert _alive() - before < 100


def _alive() -> int:
    gc.collect()
    return sum(type(one) is ProblemNode for one in gc.get_objects())


def test_a_node_on_which_a_further_worker_starts_stays_with_its_trainer() -> None:
    """Else one that waits would get it: it pays no pause, and the node is worth as much to it."""
    fold = Fold(settings=Settings(reserve_nodes_per_type=0, p_jmax=2))
    planned = {"n1": "t1", "n2": "t1", "n3": "t2"}
    joining = Joining(since_s={"n2": T0 - 50.0})
    for t2_n_max in (1, 4):
        trainers = record("t1", n_max=2), record("t2", n_max=t2_n_max)
        fold.memory = Memory(assignment=planned, joining=joining)
        plan = fold.decide(
            snapshot(idle_nodes(3)), held("n1", "n2"), trainers, training={"n1": "t1"}
        )
        assert plan.assignment == planned
        (first, _) = fold.policy.problems[-1].trainers
        assert (first.current, first.settled) == (("n1", "n2"), ("n1",))
        guess_s = Settings().rescale_up_guess_s  # one of two nodes pauses
        assert guess_s / 2.0 <= first.rescale_up_s < guess_s


@pytest.mark.parametrize(
    ("third_per_s", "waited_s", "learnt", "keeps"),
    [
        # t1 would lose (250 - 180) / 100 in each of 120 s, 84; t2 gain 1 in 120 s less the warm-up.
        (250.0, 0.0, (60.0, 5), True),  # 60
        (250.0, 50.0, (0.0, 0), True),  # 70: it has lasted 50 s for n1 already
        (250.0, 0.0, (0.0, 0), False),  # 120: nothing is lost of a warm-up that begins now
        (185.0, 0.0, (60.0, 5), False),  # t1 would lose 6
    ],
)
def test_a_start_is_given_up_only_for_more_than_its_warm_up(
    third_per_s: float, waited_s: float, learnt: tuple[float, int], *, keeps: bool
) -> None:
    """None trains yet: t1 starts on three nodes, t2 waits for one."""
    fold = Fold(settings=Settings(reserve_nodes_per_type=0, p_jmax=2, t_fwd_s=120.0))
    planned, (warm_up_s, count) = dict.fromkeys(node_names(3), "t1"), learnt
    since_s = dict.fromkeys(planned, T0 - waited_s)
    joining = Joining(since_s=since_s, warm_up_s=warm_up_s, count=count)
    fold.memory = Memory(assignment=planned, joining=joining)
    costs = _rates(100.0, 180.0, third_per_s)
    trainers = record("t1", n_max=3, costs=costs), record("t2", costs=costs)
    plan = fold.decide(snapshot(idle_nodes(3)), held(*planned), trainers)
    assert Counter(plan.assignment.values()) == ({"t1": 3} if keeps else {"t1": 2, "t2": 1})
    (first, _) = fold.policy.problems[-1].trainers
    assert (first.settled, first.rescale_up_s, first.rescale_down_s) == ((), 0.0, 0.0)


def test_a_trainer_that_grows_gets_what_another_gives_up_and_not_where_a_third_starts() -> None:
    """A policy names nodes by sizes only; t2 would begin anew at every change of the others."""
    sizes = {"n1": "t1", "n2": "t1", "n3": "t2", "n4": "t3", "n5": "t3"}
    planned = {"n1": "t1", "n2": "t1", "n3": "t1", "n4": "t2", "n5": "t3"}

    def answer(problem: Problem, context: Context) -> dict[str, Any]:
        del context
        worth = allocation_value(problem, sizes)
        return {"allocation": Allocation(assignment=sizes, objective=worth, node_price=0.0)}

    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot(idle_nodes(5)),
        is_new_snapshot=True,
        pilots=(*held("n1", "n2", "n3", "n5"), *_waiting("n4")),
        trainers=(record("t1", n_max=4), record("t2"), record("t3", n_max=4)),
        settings=Settings(reserve_nodes_per_type=0, p_jmax=3),
        memory=Memory(assignment=planned),
        training={"n1": "t1", "n2": "t1", "n3": "t1", "n5": "t3"},
    )
    plan = decide(given, Scripted(answer=answer))
    assert plan.assignment == sizes | {"n3": "t3", "n4": "t2"}
