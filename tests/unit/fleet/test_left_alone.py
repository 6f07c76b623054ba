"""Decisions that leave alone: nodes that cool down, trainers whose budget is used up."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import load_policy
from bftrainer.fleet.generations.members import Rescaled
from bftrainer.fleet.trainers.rescale_budget import SPAN_S, RescaleBudget
from bftrainer.model import canonical
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import Cooling, DecisionInput, Memory, Plan, Settings
from bftrainer.model.trainer import TrainerRecord
from milp.problem import Curve
from tests.support.snapshots import (
    T0,
    claimed,
    held,
    idle_nodes,
    record,
    released,
    snapshot,
    with_state,
)

SETTINGS = Settings(reserve_nodes_per_type=0, hold_idle_s=5.0)
BAD = Cooling(until_s=T0 + 40.0, failures=3, trainer_id="t1", cause="It was killed.")


def _trainer(trainer_id: str = "t1", *, n_min: int = 1, n_max: int = 4) -> TrainerRecord:
    made = record(trainer_id, n_min=n_min, n_max=n_max)
    curve = Curve(sizes=(1, 8), samples_per_s=(100.0, 800.0))
    return replace(made, spec=replace(made.spec, curve=curve))


def _given(
    count: int, *trainers: TrainerRecord, assignment: dict[str, str] | None = None
) -> DecisionInput:
    nodes, ours = idle_nodes(count), sorted(assignment or {})
    return DecisionInput(
        now_s=T0,
        snapshot=snapshot(with_state(nodes, NodeState.ALLOCATED, *ours)),
        is_new_snapshot=True,
        pilots=held(*ours),
        trainers=trainers,
        settings=SETTINGS,
        memory=Memory(assignment=assignment or {}, idle_seen={n.name: 9 for n in nodes}),
        training=assignment or {},
    )


def _decide(given: DecisionInput) -> Plan:
    return decide(given, load_policy("milp"))


def test_a_node_that_cools_down_is_offered_to_nobody_and_says_why() -> None:
    given = _given(3, _trainer(), _trainer("t2"))
    assert claimed(_decide(given)) == {"n1", "n2", "n3"}
    plan = _decide(replace(given, cooling={"n2": BAD}))
    assert claimed(plan) == {"n1", "n3"}
    assert plan.not_used["n2"] == (
        "It cools down for 40 s more: 3 failures of workers in a row, the last of t1"
        " (It was killed)."
    )


def test_a_trainer_moves_off_a_node_of_ours_that_cools_down_and_its_pilot_goes() -> None:
    given = _given(3, _trainer(n_max=2), assignment={"n1": "t1", "n2": "t1"})
    given = replace(given, cooling={"n2": replace(BAD, until_s=T0 + 400.0)})
    plan = _decide(given)
    assert plan.assignment == {"n1": "t1", "n3": "t1"}
    assert released(plan) == set()  # as long as any node that nobody wants just now
    given = replace(given, memory=plan.memory, now_s=T0 + SETTINGS.hold_idle_s + 1)
    assert released(_decide(given)) == set()  # its worker has not left yet
    plan = _decide(replace(given, training={"n1": "t1"}))
    assert released(plan) == {"n2"}
    assert "cools down" in plan.releases[0].reason


def test_a_cooling_node_keeps_nobody_in_the_reserve() -> None:
    given = replace(_given(1, _trainer()), cooling={"n1": BAD})
    plan = _decide(given)
    assert (plan.assignment, plan.claims) == ({}, ())


def test_a_trainer_without_rescales_left_keeps_what_it_has() -> None:
    given = _given(4, _trainer(), assignment={"n1": "t1", "n2": "t1"})
    assert len(_decide(given).assignment) == 4
    plan = _decide(replace(given, settled_until_s={"t1": T0 + 1.0}))
    assert plan.assignment == {"n1": "t1", "n2": "t1"}
    assert not plan.claims
    assert not plan.releases
    assert len(_decide(replace(given, settled_until_s={"t1": T0})).assignment) == 4  # over


def test_others_get_the_rest_and_never_its_nodes() -> None:
    given = _given(4, _trainer(n_max=2), _trainer("t2"), assignment={"n1": "t1", "n2": "t1"})
    given = replace(given, settled_until_s={"t1": T0 + 60.0})
    assert _decide(given).assignment == {"n1": "t1", "n2": "t1", "n3": "t2", "n4": "t2"}
    one = replace(given, settings=replace(SETTINGS, p_jmax=1))
    assert _decide(one).assignment == {"n1": "t1", "n2": "t1"}


def test_what_it_loses_is_lost_and_below_its_least_it_is_like_any_other() -> None:
    before = {"n1": "t1", "n2": "t1", "n3": "t1"}
    given = _given(4, _trainer(n_min=2), assignment=before)
    given = replace(given, settled_until_s={"t1": T0 + 60.0})
    left = replace(given, cooling={"n3": BAD})
    assert _decide(left).assignment == {"n1": "t1", "n2": "t1"}
    too_few = replace(given, cooling={"n3": BAD, "n2": BAD})
    assert _decide(too_few).assignment == {"n1": "t1", "n4": "t1"}


def test_both_are_part_of_what_a_decision_can_be_taken_again_from() -> None:
    given = _given(3, _trainer(), assignment={"n1": "t1"})
    given = replace(given, cooling={"n2": BAD}, settled_until_s={"t1": T0 + 60.0})
    again = canonical.decode(canonical.encode(given), DecisionInput)
    assert again == given
    assert _decide(again) == _decide(given)


# ---- the budget --------------------------------------------------------------------------


def _rescaled(before: int, *nodes: str, reason: str = "planned") -> Rescaled:
    return Rescaled(
        generation=1,
        attempt=1,
        size_before=before,
        size=len(nodes),
        reason=reason,
        pause_s=0.1,
        formation_s=0.1,
        step=1,
        epoch=0,
        samples=1,
        nodes=nodes,
        resumed_from="",
    )


def test_grows_and_moves_count_and_a_used_up_budget_ends_by_itself() -> None:
    budget = RescaleBudget(2)
    budget.on_rescaled("t1", _rescaled(0, "n1", reason="start"), 0.0)
    budget.on_rescaled("t1", _rescaled(1, "n1", "n2"), 10.0)
    assert budget.used_up(10.0) == {}
    budget.on_rescaled("t1", _rescaled(2, "n1", "n3"), 20.0)
    assert budget.used_up(20.0) == {"t1": 10.0 + SPAN_S}
    assert "rescale_budget" in budget.in_words("t1", 20.0)[0]
    assert budget.used_up(10.0 + SPAN_S) == {}
    assert budget.in_words("t1", 10.0 + SPAN_S) == ()


def test_losses_shrinks_and_starts_do_not_count() -> None:
    budget = RescaleBudget(1)
    budget.on_rescaled("t1", _rescaled(0, "n1", "n2", reason="start"), 0.0)
    budget.on_rescaled("t1", _rescaled(2, "n1"), 1.0)
    budget.on_rescaled("t1", _rescaled(1, "n1", "n2", reason="a member was lost"), 2.0)
    budget.on_rescaled("t1", _rescaled(2, "n2", reason="a member was lost"), 3.0)
    assert budget.used_up(4.0) == {}


def test_without_a_limit_nothing_is_ever_used_up() -> None:
    budget = RescaleBudget(None)
    for i in range(100):
        budget.on_rescaled("t1", _rescaled(1, "n1", "n2"), float(i))
    assert budget.used_up(100.0) == {}


def test_a_trainer_that_is_final_is_forgotten() -> None:
    budget = RescaleBudget(1)
    budget.on_rescaled("t1", _rescaled(1, "n1", "n2"), 0.0)
    budget.forget("t1")
    assert budget.used_up(1.0) == {}


def test_a_decision_written_before_there_was_either_can_be_read() -> None:
    given = _given(2, _trainer())
    plain = canonical.to_plain(given)
    del plain["cooling"], plain["settled_until_s"]
    assert canonical.from_plain(plain, DecisionInput) == given


def test_another_budget_counts_what_was_before() -> None:
    """The policy was read again: rescales within the hour count under the new limit, too."""
    budget = RescaleBudget(2)
    for at_s in (10.0, 20.0):
        budget.on_rescaled("t1", _rescaled(1, "n1", "n2"), at_s)
    budget.limit = 3
    assert budget.used_up(20.0) == {}
    budget.on_rescaled("t1", _rescaled(1, "n1", "n2"), 30.0)
    assert budget.used_up(30.0) == {"t1": 10.0 + SPAN_S}
    budget.limit = 1
    assert budget.used_up(30.0) == {"t1": 30.0 + SPAN_S}
    budget.limit = None
    assert budget.used_up(30.0) == {}
