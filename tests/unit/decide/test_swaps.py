"""A node goes to another user's trainer: in order, and if that is worth its price."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.daemon.explain.sizes import explain_trainer
from bftrainer.decide.constraints import swaps
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import Ends, Memory, PilotView, Settings
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord
from tests.support.snapshots import (
    Fold,
    claimed,
    held,
    idle_nodes,
    record,
    released,
    snapshot,
    with_state,
)


def _of(user: str, *pilots: PilotView) -> list[PilotView]:
    return [replace(pilot, user=user) for pilot in pilots]


def _by(user: str, trainer: TrainerRecord) -> TrainerRecord:
    return replace(trainer, spec=replace(trainer.spec, user=user))


LINEAR = MeasuredCosts(
    rescale_up_s=0.1, rescale_down_s=0.1, samples_per_s_by_size=((1, 10.0), (2, 20.0), (4, 40.0))
)
FLAT = MeasuredCosts(  # a fourth node is worth little more
    rescale_up_s=0.1,
    rescale_down_s=0.1,
    samples_per_s_by_size=((1, 10.0), (2, 11.0), (3, 11.1), (4, 11.2)),
)


def test_the_worker_leaves_in_order_before_the_pilot_is_released() -> None:
    busy = with_state(idle_nodes(4), NodeState.ALLOCATED, "n1", "n2", "n3", "n4")
    names = ("n1", "n2", "n3", "n4")
    ours = _of("ann", *held(*names))
    trainers = [_by("ann", record("t1", costs=FLAT)), _by("bob", record("t2", costs=LINEAR))]
    fold = Fold(memory=Memory(assignment=dict.fromkeys(names, "t1")))
    plan = fold.decide(snapshot(busy), ours, trainers, training=dict.fromkeys(names, "t1"))
    stay = {node for node, trainer in plan.assignment.items() if trainer == "t1"}
    assert 0 < len(stay) < 4
    assert "t2" not in plan.assignment.values()  # no agent of ann's serves bob
    assert plan.releases == ()
    assert plan.swaps == dict.fromkeys(set(names) - stay, "t2")
    nodes = tuple(busy)
    said = explain_trainer(trainers[1], plan, fold.settings, trainers, nodes, 0)
    assert any(f"{4 - len(stay)} more come from other users" in sentence for sentence in said)
    plan = fold.decide(snapshot(busy), ours, trainers, training=dict.fromkeys(stay, "t1"))
    gone = set(names) - stay
    assert released(plan) == gone
    assert {release.reason for release in plan.releases} == {"It goes to t2, of another user."}
    free = with_state(idle_nodes(4), NodeState.ALLOCATED, *stay)
    fold.memory = replace(fold.memory, idle_seen=dict.fromkeys(gone, 3))
    left = [pilot for pilot in ours if pilot.node in stay]
    plan = fold.decide(snapshot(free), left, trainers, training=dict.fromkeys(stay, "t1"))
    assert claimed(plan) == gone
    assert {claim.for_trainer for claim in plan.claims} == {"t2"}


def test_while_a_node_is_on_its_way_no_other_is_taken() -> None:
    """A waiting trainer of one node cost the other user a pilot with each decision."""
    names = ("n1", "n2", "n3", "n4")
    busy = with_state(idle_nodes(4), NodeState.ALLOCATED, *names)
    ours = _of("ann", *held(*names))
    steep = replace(LINEAR, samples_per_s_by_size=((1, 1000.0),))
    trainers = [
        _by("ann", record("t1", costs=FLAT)),
        _by("bob", record("t2", costs=steep, n_max=1)),
    ]
    fold = Fold(memory=Memory(assignment=dict.fromkeys(names, "t1")))
    plan = fold.decide(snapshot(busy), ours, trainers, training=dict.fromkeys(names, "t1"))
    (taken,) = plan.swaps
    training = {node: "t1" for node in names if node != taken}
    plan = fold.decide(snapshot(busy), ours, trainers, training=training)
    assert released(plan) == {taken}
    leaving = [replace(p, is_leaving=p.node == taken) for p in ours]
    for _ in range(3):
        plan = fold.decide(snapshot(busy), leaving, trainers, training=training)
        assert plan.swaps == {}
        assert plan.releases == ()
        assert set(plan.assignment.items()) == set(training.items())
    late_s = fold.memory.swaps[taken].until_s + 1.0
    plan = fold.decide(snapshot(busy), leaving, trainers, training=training, at_s=late_s)
    assert len(plan.swaps) == 1  # it never came


def test_a_small_gain_is_not_worth_a_swap() -> None:
    """t2 gains a little with a third node; a swap of a minute costs more."""
    names = ("n1", "n2", "n3", "n4")
    busy = with_state(idle_nodes(4), NodeState.ALLOCATED, *names)
    costs = MeasuredCosts(
        rescale_up_s=0.1,
        rescale_down_s=0.1,
        samples_per_s_by_size=((1, 10.0), (2, 19.0), (3, 28.5), (4, 37.0)),
    )
    training = {"n1": "t1", "n2": "t1", "n3": "t2", "n4": "t2"}
    steeper = ((1, 10.0), (2, 20.0), (3, 31.0), (4, 32.0))
    trainers = [
        _by("ann", record("t1", costs=costs)),
        _by("bob", record("t2", costs=replace(costs, samples_per_s_by_size=steeper))),
    ]
    ours = [*_of("ann", *held("n1", "n2")), *_of("bob", *held("n3", "n4"))]
    for start_s, is_swapped in ((0.0, True), (60.0, False)):
        ends = Ends(took_s=(0.0,), joined_s=(start_s,))
        fold = Fold(
            settings=Settings(reserve_nodes_per_type=0, t_fwd_s=120.0),
            memory=Memory(assignment=training, ends=ends),
        )
        plan = fold.decide(snapshot(busy), ours, trainers, training=training)
        assert (len(plan.assignment) < 4) is is_swapped, plan.assignment


def test_without_users_nothing_is_a_swap() -> None:
    fold = Fold(memory=Memory(assignment={"n1": "t1"}))
    busy = with_state(idle_nodes(1), NodeState.ALLOCATED, "n1")
    trainers = [_by("bob", record("t2", costs=LINEAR))]
    plan = fold.decide(snapshot(busy), held("n1"), trainers)
    assert plan.assignment == {"n1": "t2"}


def test_the_price_is_measured() -> None:
    assert swaps.swap_s(Ends()) == swaps.SUBMIT_S + swaps.START_GUESS_S
    assert swaps.swap_s(Ends(took_s=(20.0, 21.0, 90.0), joined_s=(2.0,))) == 21.0 + 1.0 + 2.0
