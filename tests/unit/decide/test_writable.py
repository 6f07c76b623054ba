"""An input of a decision that no journal takes: who is at fault is left out by name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bftrainer.decide.exclusion import writable
from bftrainer.decide.isolation import decide_surely
from bftrainer.decide.policies.milp import POLICY
from bftrainer.model.canonical import decode, encode
from bftrainer.model.cluster import NodeState, Reservation
from bftrainer.model.decision import DecisionInput, DecisionRecord, Memory, Plan, Settings
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord
from milp.problem import Curve
from tests.support.snapshots import (
    T0,
    held,
    idle_nodes,
    pending,
    pilot,
    record,
    released,
    snapshot,
    with_state,
)

NAN, INF = math.nan, math.inf
HELD = with_state(idle_nodes(3), NodeState.ALLOCATED, "n1", "n2")
T1, T3 = record("t1", n_max=1), record("t3")


def _given(**changes: Any) -> DecisionInput:
    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot(HELD),
        is_new_snapshot=True,
        pilots=held("n1", "n2"),
        trainers=(T1, T3),
        settings=Settings(reserve_nodes_per_type=0),
        memory=Memory(assignment={"n1": "t1", "n2": "t3"}),
    )
    return replace(given, **changes)


def _decided(given: DecisionInput) -> tuple[DecisionInput, Plan]:
    """Decide on what can be written of it; the journal can take the same decision again."""
    sound = writable(given)
    plan = decide_surely(sound, POLICY)
    made = DecisionRecord(event=None, input=sound, policy_hash="x", plan=plan, took_ms=1.0)
    kept = decode(encode(made), DecisionRecord)
    assert kept == made
    assert decide_surely(kept.input, POLICY) == plan
    return sound, plan


def _with_spec(**changes: Any) -> TrainerRecord:
    plain = record("t2")
    return replace(plain, spec=replace(plain.spec, **changes))


@pytest.mark.parametrize(
    "odd",
    [
        record("t2", costs=MeasuredCosts(rescale_up_s=NAN)),
        record("t2", costs=MeasuredCosts(samples_per_s_by_size=((1, INF),))),
        replace(record("t2"), submitted_s=NAN),
        _with_spec(curve=Curve(sizes=(1, 2), samples_per_s=(1.0, NAN))),
        _with_spec(weight=-INF),
        _with_spec(checkpoint_interval_s=NAN),
    ],
    ids=["a pause", "a rate", "a time", "a curve", "a weight", "what decisions do not read"],
)
def test_a_trainer_is_left_out_by_name(odd: TrainerRecord) -> None:
    _, plan = _decided(_given(trainers=(T1, odd, T3)))
    alone = decide_surely(_given(), POLICY)
    assert (plan.assignment, plan.claims) == (alone.assignment, alone.claims)
    (one,) = plan.memory.left_out.values()
    assert one.key == "trainer t2"
    assert "must be a finite number" in one.reason


@pytest.mark.parametrize(
    "odd", [{"priority": NAN}, {"time_limit_s": INF}, {"start_s": NAN}, {"n_nodes": NAN}], ids=str
)
def test_a_job_gets_nodes_as_one_that_nobody_understands(odd: dict[str, Any]) -> None:
    job = replace(pending("7", 1), **odd)
    memory = Memory(assignment={"n1": "t1", "n2": "t3", "n3": "t3"})
    everything = with_state(HELD, NodeState.ALLOCATED, "n3")
    seen = snapshot(everything, [job, pending("8", 1)])
    _, plan = _decided(_given(snapshot=seen, pilots=held("n1", "n2", "n3"), memory=memory))
    assert set(plan.memory.left_out) == {"request 7"}
    assert {r.for_job for r in plan.releases} == {"7", "8"}


def test_a_job_of_a_pilot_stays_one() -> None:
    odd = replace(pending("7", 1), pilot_id="p9", priority=NAN)
    sound, plan = _decided(_given(snapshot=snapshot(HELD, [odd])))
    assert [job.pilot_id for job in sound.snapshot.jobs or ()] == ["p9"]
    assert (plan.memory.left_out, released(plan)) == ({}, set())


def test_a_node_is_left_out_by_name() -> None:
    odd: dict[str, Any] = {"memory_mb": NAN}
    nodes = tuple(replace(n, **odd) if n.name == "n3" else n for n in HELD)
    _, plan = _decided(_given(snapshot=snapshot(nodes)))
    assert set(plan.memory.left_out) == {"node n3"}
    assert (plan.assignment, plan.claims) == ({"n1": "t1", "n2": "t3"}, ())


def test_a_source_with_a_number_that_is_none_has_not_answered() -> None:
    odd = Reservation(name="r", start_s=NAN, end_s=T0, nodes=("n1",))
    sound, plan = _decided(_given(snapshot=snapshot(HELD, reservations=[odd])))
    assert sound.snapshot.reservations is None
    assert sound.snapshot.nodes == HELD
    assert (plan.claims, plan.releases) == ((), ())
    assert plan.assignment.items() >= {"n1": "t1", "n2": "t3"}.items()


def test_of_pilots_measured_speeds_and_the_memory_what_can_be_written_is_known() -> None:
    given = _given(
        pilots=(pilot("n1", end_s=NAN), *held("n2")),
        speeds={"n1": NAN},
        training={"n1": "t1"},
        memory=Memory(assignment={"n1": "t1", "n2": "t3"}, held_off={"n3": NAN}),
    )
    sound, plan = _decided(given)
    assert sound.pilots == held("n1", "n2")
    assert (sound.speeds, sound.training) == ({}, {"n1": "t1"})
    assert sound.memory == Memory(assignment={"n1": "t1", "n2": "t3"})
    assert plan.assignment.items() >= {"n1": "t1", "n2": "t3"}.items()
    assert not released(plan)


def test_what_can_be_written_stays_as_it_is() -> None:
    assert writable(_given()) == _given()
