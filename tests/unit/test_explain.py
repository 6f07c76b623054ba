"""Why a trainer has the size it has, in sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.explain.backends import backend_sentences
from bftrainer.explain.sizes import explain_trainer
from bftrainer.model.cluster import Node, NodeState, Snapshot
from bftrainer.model.decision import Plan, Settings
from bftrainer.model.trainer import TrainerProgress, TrainerRecord, TrainerState
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
    assert "2 nodes are not in the pool: It is allocated." in said
    assert "1 node is not in the pool: It is down." in said


def test_an_empty_pool_is_the_reason() -> None:
    said = _explain(record(), _plan(snapshot(BUSY), [record()]))
    assert said.startswith("It needs 1 nodes (n_min) and the pool has 0.")


def test_the_worth_of_a_node_is_the_reason() -> None:
    trainers = [record("t1"), record("t2")]
    plan = _plan(snapshot(BUSY), trainers, "n1", "n2", "n3", "n4")
    size = list(plan.assignment.values()).count("t1")
    said = _explain(trainers[0], plan, queue=tuple(trainers), observed=size)
    assert f"The pool has 4 nodes; {size} of them are worth most here over the next 120 s." in said
    assert "One node more would gain it" in said
    assert "on its way" not in said


def test_planned_and_observed_sizes_that_differ_are_named() -> None:
    plan = _plan(snapshot(BUSY), [record(n_max=3)], "n1", "n2", "n3")
    assert "It is on its way from 1 to 3 nodes" in _explain(record(n_max=3), plan, observed=1)


def test_a_parked_trainer_says_so() -> None:
    parked = replace(record(n_min=3), state=TrainerState.PARKED, reason="It has no nodes.")
    said = _explain(parked, _plan(snapshot(idle_nodes(2)), [parked]))
    assert said.endswith("It has no nodes.")


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
