"""Why a trainer has the size it has, in sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.daemon.explain.sizes import explain_trainer, not_proven
from bftrainer.daemon.explain.trainers import backend_sentences, near_speeds
from bftrainer.model.cluster import Node, NodeState, Snapshot
from bftrainer.model.decision import Losses, Plan, Settings
from bftrainer.model.trainer import MeasuredCosts, TrainerProgress, TrainerRecord, TrainerState
from milp.problem import Curve, Objective
from tests.support.snapshots import T0, Fold, held, idle_nodes, record, snapshot, with_state

SETTINGS = Settings(reserve_nodes_per_type=0, p_jmax=2)
BUSY = with_state(idle_nodes(4), NodeState.ALLOCATED, "n1", "n2", "n3", "n4")


def _explain(
    trainer: TrainerRecord,
    plan: Plan | None,
    *,
    queue: tuple[TrainerRecord, ...] = (),
    nodes: tuple[Node, ...] = BUSY,
    observed: int = 0,
) -> str:
    return " ".join(explain_trainer(trainer, plan, SETTINGS, queue or (trainer,), nodes, observed))


def _plan(seen: Snapshot, trainers: list[TrainerRecord], *nodes: str) -> Plan:
    return Fold(settings=SETTINGS).decide(seen, held(*nodes), trainers)


@pytest.mark.parametrize(
    "state", [TrainerState.FINISHED, TrainerState.FAILED, TrainerState.CANCELLED]
)
def test_a_final_state_is_its_own_reason(state: TrainerState) -> None:
    over = record(state=state, reason="Its training is complete.")
    assert _explain(over, None) == f"It is {state.value}: Its training is complete."


def test_before_the_first_decision() -> None:
    assert "just started" in _explain(record(), None)


def test_a_silent_batch_system_is_the_reason() -> None:
    fold = Fold(settings=SETTINGS)
    fold.decide(snapshot(idle_nodes(2)), trainers=[record()])
    blind = Snapshot(taken_at_s=T0, nodes=None, jobs=None)
    said = _explain(record(), fold.decide(blind, trainers=[record()]), observed=1)
    assert said == "The batch system did not answer; nothing is taken or released until it does."


def test_a_place_behind_p_jmax_is_the_reason() -> None:
    trainers = [record("t1"), record("t2"), record("t3")]
    plan = _plan(snapshot(idle_nodes(4)), trainers)
    said = _explain(trainers[2], plan, queue=tuple(trainers))
    assert said == "It is number 3 in the queue and the policy runs 2 trainers at once (p_jmax)."


def test_n_max_is_the_reason() -> None:
    plan = _plan(snapshot(BUSY), [record(n_max=2)], "n1", "n2", "n3")
    assert _explain(record(n_max=2), plan, observed=2) == ("It has its maximum of 2 nodes (n_max).")


def test_n_min_is_the_reason_and_says_where_the_nodes_are() -> None:
    nodes = with_state(idle_nodes(4), NodeState.ALLOCATED, "n1", "n2")
    plan = _plan(snapshot(with_state(nodes, NodeState.DOWN, "n3")), [record(n_min=2)])
    said = _explain(record(n_min=2), plan)
    assert said.startswith("It needs 2 nodes (n_min) and the pool has 1.")
    assert "2 nodes are not in the pool: They are allocated." in said
    assert "1 node is not in the pool: It is down." in said


def test_what_this_cluster_cannot_hold_is_told_how_it_could_run() -> None:
    nodes = idle_nodes(4)
    six = record(n_min=6)
    told = _explain(six, _plan(snapshot(nodes), [six]), nodes=nodes)
    assert told.endswith(
        "this cluster has 4. It keeps its place; trainers behind it may run meanwhile."
        " 'bftrainer update t1 --nodes MIN:MAX' lets it run on fewer."
    )
    gpus = replace(record(), spec=replace(record().spec, gres="gpu:1"))
    told = _explain(gpus, _plan(snapshot(nodes), [gpus]), nodes=nodes)
    assert told.endswith("Cancel it, and submit it with another --gres or --constraint.")


def test_an_empty_pool_is_the_reason() -> None:
    said = _explain(record(), _plan(snapshot(BUSY), [record()]))
    assert said.startswith("It needs 1 node (n_min) and the pool has 0.")


def test_the_worth_of_a_node_is_the_reason() -> None:
    trainers = [record("t1"), record("t2")]
    plan = _plan(snapshot(BUSY), trainers, "n1", "n2", "n3", "n4")
    size = list(plan.assignment.values()).count("t1")
    said = _explain(trainers[0], plan, queue=tuple(trainers), observed=size)
    assert f"The pool has 4 nodes; {size} of them are worth most here over the next 120 s." in said
    assert "One more node would bring it" in said
    assert "on its way" not in said


@pytest.mark.parametrize(
    ("objective", "gap", "text"),
    [
        (200.0, 0.0, ""),
        (200.0, 0.01, ""),  # 0.005%
        (200.0, 5.0, "is not proven to be the best one: another may be better by at most 2.5%."),
        (0.0, 5.0, "another may be better by an unknown share."),
    ],
)
def test_an_answer_that_is_not_proven_says_by_how_much(
    objective: float, gap: float, text: str
) -> None:
    trainers = [record("t1"), record("t2")]
    plan = _plan(snapshot(BUSY), trainers, "n1", "n2", "n3", "n4")
    assert plan.allocation is not None
    bounded = replace(plan.allocation, objective=objective, gap=gap)
    assert not_proven(bounded).endswith(text)
    assert bool(not_proven(bounded)) is bool(text)
    said = _explain(trainers[0], replace(plan, allocation=bounded), queue=tuple(trainers))
    assert ("not proven" in said) is bool(text)


def test_losses_of_nodes_that_cost_much_are_told() -> None:
    """A loss in four minutes of a node's training, pauses of 60 s: of two nodes e**-0.5 is left."""
    settings = replace(SETTINGS, expects_losses=True)
    lost = Losses(life_node_s=240.0, count=5)
    trainer = record(n_max=4, costs=MeasuredCosts(rescale_up_s=60.0, rescale_down_s=1.0))
    plan = _plan(snapshot(idle_nodes(2)), [trainer])
    plan = replace(plan, memory=replace(plan.memory, losses=lost))
    told = " ".join(explain_trainer(trainer, plan, settings, (trainer,), idle_nodes(2), 2))
    assert (
        "Trainers lose nodes once in 4 min of one node's training, and it pauses for 60 s then:"
        " 2 nodes train 61% of the time, 3 nodes 47%."
    ) in told
    seldom = replace(plan, memory=replace(plan.memory, losses=replace(lost, life_node_s=1e6)))
    for quiet in (seldom, replace(plan, memory=replace(plan.memory, losses=Losses()))):
        told = " ".join(explain_trainer(trainer, quiet, settings, (trainer,), idle_nodes(2), 2))
        assert "lose nodes" not in told


def test_planned_and_observed_sizes_that_differ_are_named() -> None:
    plan = _plan(snapshot(BUSY), [record(n_max=3)], "n1", "n2", "n3")
    assert "It is on its way from 1 to 3 nodes" in _explain(record(n_max=3), plan, observed=1)


def test_a_parked_trainer_says_so() -> None:
    parked = replace(record(n_min=3), state=TrainerState.PARKED, reason="It has no nodes.")
    said = _explain(parked, _plan(snapshot(idle_nodes(2)), [parked]))
    assert said.endswith("It has no nodes.")


@pytest.mark.parametrize("objective", [o for o in Objective if o is not Objective.UTILITY])
def test_a_node_more_or_fewer_is_told_in_samples_whatever_the_objective(
    objective: Objective,
) -> None:
    settings = replace(SETTINGS, objective=objective, rescale_up_guess_s=2.0)
    made = record(n_max=4)
    spec = replace(made.spec, curve=Curve(sizes=(1, 2, 3), samples_per_s=(100.0, 190.0, 270.0)))
    made = replace(made, spec=replace(spec, weight=3.0, samples=100_000))
    made = replace(made, progress=TrainerProgress(samples=43_000))
    training = {"n1": "t1", "n2": "t1"}
    fold = Fold(settings=settings)
    plan = fold.decide(snapshot(BUSY), held("n1", "n2"), [made], training=training)
    assert plan.allocation is not None
    told = near_speeds(made, settings, 2, plan.allocation.marginals["t1"])
    now, up, down = 190.0, 2.0, settings.rescale_down_guess_s
    assert [(one.size, one.samples_per_s, one.left_s) for one in told] == [
        (1, 100.0, 570.0),
        (2, now, 300.0),
        (3, 270.0, pytest.approx(57_000 / 270)),
    ]
    t_fwd_s = settings.t_fwd_s
    assert [one.change_samples for one in told] == [
        pytest.approx((100.0 - now) * t_fwd_s - now * down),
        None,
        pytest.approx((270.0 - now) * t_fwd_s - now * up),
    ]


def test_nothing_is_told_of_speeds_that_nobody_measured_and_of_sizes_that_cannot_be() -> None:
    assert near_speeds(record(), SETTINGS, 2, None) == ()
    costs = MeasuredCosts(samples_per_s_by_size=((2, 50.0),))
    one = record(n_min=2, n_max=2, costs=costs)
    [told] = near_speeds(one, SETTINGS, 2, None)
    assert (told.size, told.left_s, told.change_samples) == (2, None, None)
    assert near_speeds(one, SETTINGS, 0, None) == (told,)  # what it waits for
    assert near_speeds(replace(one, state=TrainerState.FINISHED), SETTINGS, 2, None) == ()


@pytest.mark.parametrize(
    ("backend", "size", "said"),
    [
        ("", 1, ""),
        ("gloo", 3, ""),
        ("nccl", 1, ""),
        ("nccl", 3, "Its workers average gradients with NCCL, from GPU to GPU."),
        (
            "gloo (NCCL failed: rank 1: no interface (eth7))",
            2,
            (
                "Its workers average gradients with gloo, through the memory of their hosts:"
                " NCCL failed: rank 1: no interface (eth7)."
            ),
        ),
    ],
)
def test_the_back_end_is_told_where_there_was_a_choice(backend: str, size: int, said: str) -> None:
    one = replace(record(), progress=TrainerProgress(size=size, backend=backend))
    assert "".join(backend_sentences(one)) == said
    assert backend_sentences(replace(one, state=TrainerState.FINISHED)) == ()
