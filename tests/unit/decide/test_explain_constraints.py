"""Which constraints shaped a trainer's nodes, told of decisions small enough to take by hand.

Every decision is of n1 to n4 under pilots whose agents are connected. ``fcfs-greedy`` gives the
first trainer as many as it may have, then the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bftrainer.daemon.explain.constraints import constraint_sentences, effects_on, what_if
from bftrainer.daemon.explain.sizes import Circumstances
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import Context, Decided, Policy, Traits, load_policy
from bftrainer.model.decision import Cooling, DecisionInput, Joining, Memory, Settings, SlowNode
from bftrainer.model.fairness import Limits, Usage, Used, Wait
from bftrainer.model.trainer import TrainerRecord, TrainerState
from bftrainer.model.views import ConstraintEffect
from milp.problem import Allocation, Problem
from milp.worth import allocation_value
from tests.support.snapshots import T0, held, idle_nodes, node_names, record, snapshot

GREEDY = Settings(policy="fcfs-greedy", reserve_nodes_per_type=0)
SAME_IN_ALL = ", the last decision would have given it "
COOLING = Cooling(until_s=T0 + 60.0, failures=3, trainer_id="t9", cause="It exited with 1.")


def given_of(
    *trainers: TrainerRecord,
    settings: Settings = GREEDY,
    memory: Memory | None = None,
    training: Mapping[str, str] | None = None,
    **other: Any,
) -> DecisionInput:
    """What is decided on; a trainer that trains was planned there, too."""
    training = training or {}
    memory = memory or Memory()
    assignment = {**training, **memory.assignment}
    return DecisionInput(
        now_s=T0,
        snapshot=snapshot(idle_nodes(4)),
        is_new_snapshot=True,
        trainers=trainers,
        settings=settings,
        memory=replace(memory, assignment=assignment),
        training=training,
        **{"pilots": held(*node_names(4)), **other},
    )


def told(
    given: DecisionInput, trainer_id: str = "t1", policy: str = ""
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The names of the constraints, and what is said of them."""
    effects = effects_of(given, trainer_id, policy)
    return [effect.names for effect in effects], sentences_of(effects)


def sentences_of(effects: Sequence[ConstraintEffect]) -> list[str]:
    """The sentences, with a colon for what is the same in all of them."""
    sentences = constraint_sentences(effects)
    return [sentence.replace(SAME_IN_ALL, ": ") for sentence in sentences]


def effects_of(
    given: DecisionInput, trainer_id: str = "t1", policy: str = ""
) -> Sequence[ConstraintEffect]:
    settings = replace(given.settings, policy=policy or given.settings.policy)
    given = replace(given, settings=settings)
    allocate = load_policy(settings.policy)
    (trainer,) = [one for one in given.trainers if one.trainer_id == trainer_id]
    plan = decide(given, allocate)
    return effects_on(trainer, what_if(given, plan, allocate), Circumstances())


def test_the_whole_sentence() -> None:
    given = given_of(record("t1"), cooling={"n3": COOLING})
    assert constraint_sentences(effects_of(given)) == (
        (
            "Without the cooling of nodes after failures (bftrainer nodes), the last decision would"
            " have given it 4 nodes instead of 3."
        ),
    )


def resting(trainer: TrainerRecord) -> TrainerRecord:
    spec = replace(trainer.spec, rescale_rest_s=60.0)
    return replace(trainer, spec=spec, shrunk_s=T0 - 40.0)


def test_nothing_is_told_where_nothing_bends_the_answer() -> None:
    assert told(given_of(record("t1"))) == ([], [])


@pytest.mark.parametrize("policy", ["fcfs-greedy", "milp", "srtf"])
def test_a_cap_withholds_nodes_whether_or_not_the_policy_keeps_it(policy: str) -> None:
    """bob may have 2 of the 4."""
    capped = replace(GREEDY, limits=Limits(by_user={"bob": 2}))
    names, sentences = told(given_of(record("t1"), settings=capped), policy=policy)
    assert names == [("caps",)]
    (sentence,) = sentences
    assert sentence.startswith("Without limits of users and accounts (max_nodes_by_user, ")
    assert sentence.endswith(": 4 nodes instead of 2.")


@pytest.mark.parametrize("policy", ["fcfs-greedy", "milp"])
def test_a_set_of_sizes_fixes_the_size_whether_or_not_the_policy_keeps_it(policy: str) -> None:
    """It may have 1, 3 or 8 nodes; 4 are there."""
    plain = record("t1")
    in_sizes = replace(plain, spec=replace(plain.spec, sizes=(1, 3, 8)))
    names, sentences = told(given_of(in_sizes), policy=policy)
    assert names == [("size-sets",)]
    assert sentences == ["Without sets of sizes (--nodes): 4 nodes instead of 3."]


def test_a_rest_delays_nodes() -> None:
    given = given_of(resting(record("t1")), training={"n1": "t1"})
    names, sentences = told(given)
    assert names == [("rest-after-shrink",)]
    assert sentences == ["Without rests after a shrink (--rescale-rest): 4 nodes instead of 1."]


def test_what_binds_one_trainer_gives_nodes_to_another() -> None:
    given = given_of(resting(record("t1")), record("t2"), training={"n1": "t1"})
    assert told(given, "t2")[1] == [
        "Without rests after a shrink (--rescale-rest): no nodes instead of 3."
    ]


def test_a_spent_budget_keeps_nodes_and_withholds_others() -> None:
    given = given_of(record("t1"), training={"n1": "t1"}, settled_until_s={"t1": T0 + 60.0})
    assert told(given) == (
        [("rescale-budget",)],
        ["Without budgets of rescales that are used up (rescale_budget): 4 nodes instead of 1."],
    )


def test_two_that_would_each_have_done_are_told_together() -> None:
    """Its budget is spent and it rests: without one of them the other still holds it at 1 node."""
    trainer = resting(record("t1"))
    given = given_of(trainer, training={"n1": "t1"}, settled_until_s={"t1": T0 + 60.0})
    names, sentences = told(given)
    assert names == [("rescale-budget", "rest-after-shrink")]
    budgets = "budgets of rescales that are used up (rescale_budget)"
    rests = "rests after a shrink (--rescale-rest)"
    assert sentences == [f"With neither {budgets} nor {rests}: 4 nodes instead of 1."]


def test_cooling_nodes_go_to_nobody() -> None:
    given = given_of(record("t1"), cooling={"n3": COOLING, "n4": COOLING})
    assert told(given) == (
        [("cooling-nodes",)],
        ["Without the cooling of nodes after failures (bftrainer nodes): 4 nodes instead of 2."],
    )


def test_a_turn_gives_a_node_to_one_and_takes_it_from_another() -> None:
    """t2 has waited for an hour, and the bound is ten minutes."""
    bound = replace(GREEDY, max_wait_s=600.0)
    memory = Memory(waits={"t2": Wait(since_s=T0 - 3600.0)})
    first = replace(record("t1"), started_s=T0 - 3600.0, state=TrainerState.RUNNING)
    given = given_of(
        first,
        record("t2"),
        settings=bound,
        memory=memory,
        training=dict.fromkeys(node_names(4), "t1"),
    )
    begin = "Without turns of trainers that had waited too long (max_wait_s)"
    assert told(given, "t1")[1] == [f"{begin}: 4 nodes instead of 3."]
    assert told(given, "t2")[1] == [f"{begin}: no nodes instead of 1."]
    assert told(given, "t2")[0] == [("turns",)]


def test_fair_share_has_another_user_come_first() -> None:
    """One trainer may run; bob, who has used ten hours, submitted before ann, who has used none."""
    settings = replace(GREEDY, p_jmax=1, fair_share_half_life_s=86_400.0)
    used = {"": {"bob": Used(amount=36_000.0, at_s=T0)}}
    of_ann = record("t2")
    of_ann = replace(of_ann, spec=replace(of_ann.spec, user="ann"))
    memory = Memory(usage=Usage(at_s=T0, node_s=used))
    given = given_of(record("t1"), of_ann, settings=settings, memory=memory)
    names, sentences = told(given)
    assert names == [("admission",)]
    assert sentences == [
        "Without shares of users and accounts (fair_share_half_life_s): 4 nodes instead of none."
    ]


def test_a_slow_node_is_left_out_where_it_slows_the_others() -> None:
    """n4 does a tenth of the others' work: four at its pace are worth less than the three."""
    memory = Memory(slow_nodes={"n4": SlowNode(fraction=0.1, seen_s=T0, trainer_id="t9")})
    slow = replace(GREEDY, policy="milp", straggler_threshold=0.7)
    names, sentences = told(given_of(record("t1"), settings=slow, memory=memory))
    assert names == [("slow-nodes",)]
    assert sentences == [
        "Without what was measured of slow nodes (bftrainer nodes): 4 nodes instead of 3."
    ]


def _crossed(problem: Problem, _context: Context, /) -> Decided:
    """Give the first trainer the first node, the second one the second."""
    names = [node.name for node in problem.nodes]
    owners = [trainer.trainer_id for trainer in problem.trainers]
    assignment = dict(zip(names, owners, strict=False))
    worth = allocation_value(problem, assignment)
    allocation = Allocation(assignment=assignment, objective=worth, node_price=0.0, marginals={})
    return Decided(allocation=allocation)


def test_a_node_stays_where_a_trainer_starts() -> None:
    """t1 starts on n2 and t2 on n1; the policy would exchange them."""
    memory = Memory(
        assignment={"n1": "t2", "n2": "t1"},
        joining=Joining(since_s={"n1": T0 - 5.0, "n2": T0 - 5.0}),
    )
    trainers = record("t1", n_max=1), record("t2", n_max=1)
    given = given_of(*trainers, memory=memory)
    policy = Policy("fcfs-greedy", Traits(rescales=False), _crossed)
    plan = decide(given, policy)
    assert plan.assignment == {"n1": "t2", "n2": "t1"}
    effects = effects_on(trainers[0], what_if(given, plan, policy), Circumstances())
    assert [effect.names for effect in effects] == [("planned-nodes",)]
    assert sentences_of(effects) == [
        "Without the rule that nodes stay where a trainer is about to start: n1 instead of n2.",
    ]


def test_a_node_of_another_users_pilot_comes_later() -> None:
    pilots = [replace(pilot, user="bob") for pilot in held(*node_names(4))]
    pilots[3] = replace(pilots[3], user="ann")
    given = given_of(record("t1"), pilots=tuple(pilots), training={"n1": "t1"})
    names, sentences = told(given)
    assert names == [("awaited-swaps",)]
    assert sentences == [
        "Without pilots of other users that have to leave first (run_as): 4 nodes instead of 3."
    ]


@pytest.mark.parametrize(
    ("trainer", "circumstances"),
    [
        (record("t1"), Circumstances(is_draining=True)),
        (record("t1"), Circumstances(withheld="It is held.")),
        (replace(record("t1"), cancelled_s=T0), Circumstances()),
        (record("t1", state=TrainerState.FINISHED), Circumstances()),
    ],
)
def test_nothing_is_told_where_the_decision_does_not_count(
    trainer: TrainerRecord, circumstances: Circumstances
) -> None:
    given = given_of(record("t1"), cooling={"n3": COOLING})
    policy = load_policy("fcfs-greedy")
    decision = what_if(given, decide(given, policy), policy)
    assert effects_on(record("t1"), decision, Circumstances())
    assert effects_on(trainer, decision, circumstances) == ()


def test_nothing_is_told_of_a_plan_that_another_policy_made() -> None:
    given = given_of(record("t1"), record("t2"), cooling={"n3": COOLING})
    plan = decide(given, load_policy("fcfs-greedy"))
    assert what_if(given, plan, load_policy("fcfs-greedy")) is not None
    assert what_if(given, plan, load_policy("equal-share")) is None
    assert what_if(given, replace(plan, trouble="BFT-2118"), load_policy("fcfs-greedy")) is None
    assert what_if(None, None, load_policy("fcfs-greedy")) is None
