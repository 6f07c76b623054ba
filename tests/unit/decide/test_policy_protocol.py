"""What a policy is told, what of its answers is used, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bftrainer.daemon.explain.sizes import explain_trainer
from bftrainer.decide.isolation import decide_surely
from bftrainer.decide.policies.base import AllocationPolicy, Context, Standing, Traits
from bftrainer.decide.throughput.fit import MeasuredSize
from bftrainer.model import canonical
from bftrainer.model.decision import DecisionInput, DecisionRecord, Memory, Plan, Settings, SlowNode
from bftrainer.model.trainer import MeasuredCosts, TrainerProgress, TrainerRecord
from milp.problem import Objective, Problem
from milp.solve import solve
from milp.worth import curve_at
from tests.support.policies import Scripted
from tests.support.snapshots import T0, held, idle_nodes, record, snapshot

SETTINGS = Settings(reserve_nodes_per_type=0)


@dataclass(slots=True, kw_only=True)
class Site:
    """Decides step by step; the memory goes through the journal's form."""

    policy: AllocationPolicy
    settings: Settings = SETTINGS
    memory: Memory = field(default_factory=Memory)
    failures: list[Exception] = field(default_factory=list)

    def given(self, *trainers: TrainerRecord, after_s: float = 0.0, **more: Any) -> DecisionInput:
        return DecisionInput(
            now_s=T0 + after_s,
            snapshot=more.pop("seen", snapshot(idle_nodes(4))),
            is_new_snapshot=True,
            pilots=more.pop("pilots", ()),
            trainers=trainers,
            settings=self.settings,
            memory=self.memory,
            **more,
        )

    def decide(self, *trainers: TrainerRecord, after_s: float = 0.0, **more: Any) -> Plan:
        given = self.given(*trainers, after_s=after_s, **more)
        plan = decide_surely(given, self.policy, self.failures.append)
        kept = DecisionRecord(event=None, input=given, policy_hash="", plan=plan, took_ms=0.0)
        assert canonical.decode(canonical.encode(kept), DecisionRecord) == kept
        self.memory = plan.memory
        return plan


def counting(_problem: Problem, context: Context) -> dict[str, Any]:
    """A state that says in how many decisions answers were accepted."""
    return {"state": {"accepted": (context.state or {"accepted": 0})["accepted"] + 1}}


def test_it_is_told_how_each_trainer_stands() -> None:
    policy = Scripted()
    first, second = record("t1"), record("t2")
    first = replace(
        first,
        submitted_s=T0 - 60.0,
        spec=replace(first.spec, samples=1000),
        progress=TrainerProgress(samples=300, node_s=77.0),
        costs=MeasuredCosts(samples_per_s_by_size=((1, 10.0), (2, 18.0))),
    )
    Site(policy=policy).decide(first, second, seed=7)
    [(problem, context)] = policy.asked
    assert (context.now_s, context.seed, context.state) == (T0, 7, None)
    assert context.trainers.keys() == {one.trainer_id for one in problem.trainers}
    assert context.trainers["t1"] == Standing(
        submitted_s=T0 - 60.0,
        attained_node_s=77.0,
        done_samples=300,
        left_samples=700,
        points=(MeasuredSize(1, 10.0, 0.05), MeasuredSize(2, 18.0, 0.05)),
    )
    assert context.trainers["t2"].left_samples is None
    assert not context.trainers["t2"].has_rates


@pytest.mark.parametrize(("reads_rates", "expected"), [(True, 10.0), (False, 1.0)])
def test_who_compares_rates_is_told_comparable_ones(reads_rates: bool, expected: float) -> None:
    policy = Scripted(traits=Traits(reads_rates=reads_rates))
    measured = record("t1", costs=MeasuredCosts(samples_per_s_by_size=((1, 10.0),)))
    settings = replace(SETTINGS, objective=Objective.SCALING_EFFICIENCY, explore_budget=0.0)
    Site(policy=policy, settings=settings).decide(measured, record("t2"))
    [(problem, _)] = policy.asked
    assert curve_at(problem.trainers[1].curve, 1) == pytest.approx(expected)


def test_the_state_is_that_of_the_last_decision_as_the_journal_keeps_it() -> None:
    policy = Scripted(answer=lambda _p, c: {"state": {1: (2, c.state is None)}})
    site = Site(policy=policy)
    assert site.decide(record("t1")).memory.policy_state == {"1": [2, True]}
    site.decide(record("t1"))
    assert policy.asked[-1][1].state == {"1": [2, True]}
    assert site.memory.policy_state == {"1": [2, False]}
    site.decide()  # nothing to allocate: it is not asked
    assert (len(policy.asked), site.memory.policy_state) == (2, {"1": [2, False]})


def test_questions_for_sizes_that_teach_leave_nothing_behind() -> None:
    known = MeasuredCosts(samples_per_s_by_size=((1, 10.0), (2, 19.0), (4, 30.0)))
    policy = Scripted(answer=counting)
    site = Site(policy=policy, settings=replace(SETTINGS, explore_budget=0.5))
    site.decide(record("t1", costs=known), record("t2", costs=known))
    assert len(policy.asked) > 1
    assert site.memory.policy_state == {"accepted": 1}
    ignores = Scripted(answer=counting, traits=Traits(follows_curves=False))
    Site(policy=ignores, settings=site.settings).decide(
        record("t1", costs=known), record("t2", costs=known)
    )
    assert len(ignores.asked) == 1


def test_of_questions_without_slow_nodes_only_the_accepted_one_is_remembered() -> None:
    policy = Scripted(answer=lambda p, _: {"state": [node.name for node in p.nodes]})
    slow = {"n2": SlowNode(fraction=0.1, seen_s=T0, trainer_id="t1")}
    settings = replace(SETTINGS, straggler_threshold=0.8)
    site = Site(policy=policy, settings=settings, memory=Memory(slow_nodes=slow))
    plan = site.decide(record("t1", n_max=3))
    assert len(policy.asked) > 1
    assert set(plan.assignment) == {"n1", "n3", "n4"}
    assert plan.memory.policy_state == ["n1", "n3", "n4"]
    stays = Scripted(answer=counting, traits=Traits(rescales=False))
    Site(policy=stays, settings=settings, memory=Memory(slow_nodes=slow)).decide(record("t1"))
    assert len(stays.asked) == 1


def test_a_policy_that_changes_the_state_it_is_given_changes_nothing() -> None:
    def answer(problem: Problem, context: Context) -> dict[str, Any]:
        state = context.state or {"calls": 0}
        state["calls"] += 1  # not pure
        if "t2" in {t.trainer_id for t in problem.trainers}:
            raise RuntimeError("what nobody thought of")
        return {"state": state}

    site = Site(policy=Scripted(answer=answer), memory=Memory(policy_state={"calls": 5}))
    given = site.memory.policy_state
    plan = site.decide(record("t1"), record("t2"), record("t3"))
    assert [one.name for one in plan.memory.left_out.values()] == ["t2"]
    assert (given, plan.memory.policy_state) == ({"calls": 5}, {"calls": 6})


BAD: list[tuple[dict[str, Any] | None, str]] = [
    (None, "it is a Allocation, not a Decided"),
    ({"order": ("t9",)}, "t9 is not a trainer"),
    ({"order": ("t2", "t2")}, "the order names a trainer twice"),
    ({"dropped": {"t9": "why"}}, "t9 is not a trainer"),
    ({"dropped": {"t1": "why"}}, "trainer t1 is dropped, but has nodes"),
    ({"wake_at_s": T0}, "is not later than now"),
    ({"wake_at_s": float("nan")}, "Decided.wake_at_s: must be a finite number, not nan"),
    ({"state": object()}, "Decided.state: must be a whole number, not object"),
    ({"order": ("t2", "t1")}, "trainer t1 runs, but 1 trainers come before it"),
]


@pytest.mark.parametrize(("more", "why"), BAD)
def test_an_answer_that_breaks_a_rule_leaves_everybody_what_they_have(
    more: dict[str, Any] | None, why: str
) -> None:
    class Bad(Scripted):
        def allocate(self, problem: Problem, context: Context, /) -> Any:
            if more is None:
                return solve(problem)
            return Scripted.allocate(self, problem, context)

    site = Site(
        policy=Bad(answer=lambda _p, _c: more or {}),
        settings=replace(SETTINGS, p_jmax=1),
        memory=Memory(assignment={"n1": "t2"}, policy_state=[3]),
    )
    plan = site.decide(record("t1"), record("t2"), pilots=held("n1"))
    assert plan.trouble.startswith("BFT-2118: policy milp gives no usable answer.")
    assert why in plan.trouble
    assert plan.assignment == {"n1": "t2"}
    assert (plan.wake_at_s, plan.order, plan.dropped) == (None, (), {})
    assert plan.memory.policy_state == [3]


def last_first(problem: Problem, _context: Context) -> dict[str, Any]:
    entering = problem.trainers[::-1]
    return {
        "allocation": solve(replace(problem, trainers=entering)),
        "order": tuple(t.trainer_id for t in entering),
    }


def test_it_says_in_which_order_trainers_enter() -> None:
    site = Site(policy=Scripted(answer=last_first), settings=replace(SETTINGS, p_jmax=1))
    queue = (record("t1"), record("t2"))
    plan = site.decide(*queue)
    assert set(plan.assignment.values()) == {"t2"}
    assert (plan.trouble, plan.order) == ("", ("t2", "t1"))
    said = explain_trainer(queue[0], plan, site.settings, queue, idle_nodes(4), 0)
    assert "It is number 2 in the queue" in " ".join(said)
    said = explain_trainer(queue[1], plan, site.settings, queue, idle_nodes(4), 4)
    assert "number" not in " ".join(said)


def dropping(*names: str) -> Callable[[Problem, Context], dict[str, Any]]:
    def answer(problem: Problem, _context: Context) -> dict[str, Any]:
        there = tuple(t for t in problem.trainers if t.trainer_id not in names)
        allocation = solve(replace(problem, trainers=there))
        marginals = dict(solve(problem).marginals)
        return {
            "allocation": replace(allocation, marginals=marginals),
            "dropped": dict.fromkeys(names, "There is no room for it."),
        }

    return answer


def test_it_drops_who_has_no_nodes() -> None:
    plan = Site(policy=Scripted(answer=dropping("t2"))).decide(record("t1"), record("t2"))
    assert (plan.trouble, plan.dropped) == ("", {"t2": "There is no room for it."})
    assert set(plan.assignment.values()) == {"t1"}


def test_who_trains_on_slow_nodes_alone_is_not_dropped() -> None:
    """Asked without its node, the policy cannot know that it trains."""
    slow = {"n1": SlowNode(fraction=0.1, seen_s=T0, trainer_id="t2")}
    policy = Scripted(answer=lambda p, c: dropping("t2")(p, c) if len(p.nodes) < 4 else {})
    settings = replace(SETTINGS, straggler_threshold=0.8, objective=Objective.WEIGHTED)
    site = Site(
        policy=policy,
        settings=settings,
        memory=Memory(assignment={"n1": "t2"}, slow_nodes=slow),
    )
    light = record("t2", n_max=1)
    light = replace(light, spec=replace(light.spec, weight=0.1))
    training = {"n1": "t2"}
    plan = site.decide(record("t1", n_max=8), light, pilots=held("n1"), training=training)
    assert set(plan.assignment) == {"n2", "n3", "n4"}  # an answer to the question without it
    assert (plan.trouble, plan.dropped) == ("", {})


def test_what_cannot_be_written_down_is_not_accepted() -> None:
    site = Site(
        policy=Scripted(answer=lambda p, c: {**dropping("t2")(p, c), "state": [4]}),
        memory=Memory(assignment={"n1": "t1"}, policy_state=[3]),
    )
    before = site.memory
    plan = site.decide(record("t1"), record("t2"), pilots=held("n1"))
    assert (plan.memory.policy_state, plan.dropped != {}) == ([4], True)
    stripped = plan.without_taking(before)
    assert (stripped.assignment, stripped.dropped) == ({"n1": "t1"}, {})
    assert stripped.memory.policy_state == [3]


def test_it_may_want_to_be_asked_again() -> None:
    site = Site(policy=Scripted(answer=lambda _p, c: {"wake_at_s": c.now_s + 5.0}))
    assert site.decide(record("t1"), after_s=1.0).wake_at_s == T0 + 6.0
    assert site.decide(after_s=2.0).wake_at_s is None  # it was not asked
