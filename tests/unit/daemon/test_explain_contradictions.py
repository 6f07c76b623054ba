"""No two sentences of one answer contradict each other, in whatever state and of whatever size.

The judge knows the facts (how many nodes the trainer has and is to have, whether nodes are taken at
all) and what each sentence claims of them; it shares no condition with the code that chooses the
sentences. A sentence that it has never met fails the test: its claim is to be written down here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from bftrainer.daemon.explain.constraints import constraint_sentences, effects_on
from bftrainer.daemon.explain.sizes import Circumstances, explain_trainer
from bftrainer.decide.what_if import WhatIf
from bftrainer.model.cluster import NodeState
from bftrainer.model.decision import Plan, Settings
from bftrainer.model.fairness import Limits
from bftrainer.model.trainer import TrainerRecord, TrainerState
from bftrainer.model.views import ConstraintEffect
from tests.support.snapshots import T0, Fold, idle_nodes, node_names, record, snapshot, with_state

N_NODES, N_MIN, N_MAX = 6, 2, 4
SIZES = (0, 2, 3, 4)  # of a trainer with 2 to 4 nodes
NOW_S = T0 + 600.0
HELD = "It is held; 'bftrainer release t1' lets it go on."
CANCELLED = "Cancelled by bob."
BUDGET = "It was given other nodes 3 times: until 12:00 it keeps those it has and gets no others."


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is so."""

    state: TrainerState
    has: int  # nodes on which it trains
    gets: int  # nodes of the last decision
    pool: int  # nodes of the last decision's pool
    takes: bool = True  # it may have nodes now
    is_heard: bool = True
    ends: bool = False  # it is being cancelled


Claim = Callable[[Facts, tuple[int, ...]], bool]
# What a sentence says -> whether that is so, of the facts and the numbers in the sentence.
CLAIMS: dict[str, Claim] = {
    r"It has its maximum of (\d+) nodes": lambda f, n: f.has == f.gets == n[0] and f.takes,
    r"It is to have its maximum of (\d+) nodes": lambda f, n: (
        f.gets == n[0] and f.has != n[0] and f.takes
    ),
    r"It has no nodes": lambda f, _: f.has == 0 and f.is_heard,
    r"It has had no nodes for \d+ min; they go to": lambda f, _: f.has == f.gets == 0,
    r"resumes from its last checkpoint": lambda f, _: (
        f.state is TrainerState.PARKED and f.has == 0 and not f.ends
    ),
    r"on its way from (\d+) to (\d+) nodes?": lambda f, n: (
        (f.has, f.gets) == n and f.has != f.gets and f.takes and f.is_heard
    ),
    r"it trains on and grows": lambda f, _: 0 < f.has < f.gets,
    r"it trains when": lambda f, _: f.has == 0 < f.gets,
    r"it gives (\d+) back": lambda f, n: f.has - f.gets == n[0] and f.gets > 0,
    r"it gives all back": lambda f, _: f.gets == 0 < f.has,
    r"while the others train|joiners start": lambda f, _: 0 < f.has < f.gets,
    r"It leaves its (\d+) nodes": lambda f, n: f.has == n[0] > 0 and not f.takes,
    r"gets no nodes|none are taken": lambda f, _: not f.takes,
    r"for \d+ s it does not grow": lambda f, _: f.gets <= f.has,
    r"keeps those it has and gets no others": lambda f, _: f.has == f.gets > 0,
    r"It never starts|It cannot run": lambda f, _: f.gets == 0,
    r"It needs \d+ nodes \(n_min\) and the pool has": lambda f, _: f.gets == 0,
    r"It keeps its place; trainers behind": lambda f, _: f.gets == 0,
    r"It is number \d+ in the queue": lambda f, _: f.gets == 0,
    r"The pool has (\d+) nodes; (\d+) of them": lambda f, n: n == (f.pool, f.gets),
    r"The pool has (\d+) nodes; none of them": lambda f, n: (f.pool, f.gets) == (*n, 0),
    r"The pool is empty": lambda f, _: f.pool == 0,
    r"^It is (finished|failed|cancelled): ": lambda f, _: f.state.is_final,
    r"It is held": lambda f, _: not f.takes,
    r"Cancelled by bob": lambda f, _: f.ends,
    r"The trainers of user bob have (\d+) nodes?": lambda f, n: n[0] == f.gets,
    r"The pool has (\d+) nodes": lambda f, n: n[0] == f.pool,
    r"keeps its nodes": lambda f, _: f.has > 0,  # of "every trainer"
    r"would have given it (\d+) nodes? instead of (\d+)\.": lambda f, n: (
        f.gets == n[1] != n[0] and f.takes and not f.ends
    ),
    r"would have given it (\d+) nodes? instead of none": lambda f, n: (
        f.gets == 0 < n[0] and f.takes and not f.ends
    ),
    r"would have given it no nodes instead of (\d+)": lambda f, n: (
        f.gets == n[0] > 0 and f.takes and not f.ends
    ),
    # These claim nothing of its own nodes.
    r"One more node would|With one node more|not proven": lambda _, __: True,
    r"not in the pool|The site bounds no waits|did not weigh it": lambda _, __: True,
    r"No decision|just started": lambda _, __: True,
    r"The policy has no answer|no trainer's nodes change": lambda _, __: True,
    r"come from other users": lambda f, _: f.takes,
    r"agent on n1 is silent": lambda f, _: not f.is_heard,
}


def judge(sentences: tuple[str, ...], facts: Facts) -> None:
    """Fail on the first sentence that is not so, or that nobody has thought about."""
    assert sentences
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        met = [(claim, match) for text, claim in CLAIMS.items() if (match := _said(text, sentence))]
        assert met, f"what does this claim? {sentence}"
        for claim, match in met:
            numbers = tuple(int(part) for part in match.groups() if part and part.isdigit())
            assert claim(facts, numbers), f"{sentence!r} of {facts}, in {sentences}"


def _said(text: str, sentence: str) -> re.Match[str] | None:
    return re.search(text, sentence)


def _trainer(state: TrainerState) -> TrainerRecord:
    reason = {
        TrainerState.PARKED: "It has no nodes; it resumes from its last checkpoint.",
        TrainerState.FINISHED: "Its training is complete.",
        TrainerState.FAILED: "A worker exited with 1.",
        TrainerState.CANCELLED: "Cancelled by ann.",
    }.get(state, "")
    return record("t1", n_min=N_MIN, n_max=N_MAX, state=state, reason=reason)


def _planned(trainer: TrainerRecord, gets: int, *, n_idle: int = N_NODES) -> Plan:
    """A decision of a pool of ``n_idle`` nodes that gives it so many of them."""
    busy = node_names(N_NODES)[n_idle:]
    seen = snapshot(with_state(idle_nodes(N_NODES), NodeState.ALLOCATED, *busy))
    plan = Fold().decide(seen, trainers=[replace(trainer, state=TrainerState.QUEUED)])
    assert len(plan.pool) == n_idle
    return replace(plan, assignment=dict.fromkeys(node_names(n_idle)[:gets], "t1"))


class Repeated(WhatIf):
    """A decision that would have given it so many nodes but for a rest."""

    def __init__(self, plan: Plan, size_without: int) -> None:
        self._nodes = tuple(sorted(plan.assignment))
        self._nodes_without = tuple(node_names(size_without))

    def effects(self, trainer_id: str) -> tuple[ConstraintEffect, ...]:
        assert trainer_id == "t1"
        if self._nodes == self._nodes_without:
            return ()
        effect = ConstraintEffect(
            names=("rest-after-shrink",),
            meanings=("rests after a shrink (--rescale-rest)",),
            nodes=self._nodes,
            nodes_without=self._nodes_without,
        )
        return (effect,)


EVERY = list(itertools.product(TrainerState, SIZES, SIZES))
NODES = idle_nodes(N_NODES)


@pytest.mark.parametrize(("state", "has", "gets"), EVERY)
def test_sentences_do_not_contradict_each_other(state: TrainerState, has: int, gets: int) -> None:
    trainer = _trainer(state)
    plan = _planned(trainer, gets)
    facts = Facts(state=state, has=has, gets=gets, pool=N_NODES)
    open_settings = Settings(reserve_nodes_per_type=0)
    capped = replace(open_settings, limits=Limits(by_user={"bob": gets}))
    first = (record("t2"), trainer)
    short = replace(open_settings, p_jmax=1)
    spec = replace(trainer.spec, rescale_rest_s=660.0)
    rests = replace(trainer, shrunk_s=T0, spec=spec)
    failed = replace(plan, trouble="The policy has no answer.")
    never = replace(plan, allocation=None)
    swapped = replace(plan, swaps={"n6": "t1"})
    for settings, its_plan, queue, one in (
        (open_settings, plan, (trainer,), trainer),
        (open_settings, plan, (trainer,), rests),
        (open_settings, failed, (trainer,), trainer),
        (open_settings, never, (trainer,), trainer),
        (open_settings, swapped, (trainer,), trainer),
        (open_settings, None, (trainer,), trainer),
        (capped, plan, (trainer,), trainer),
        (short, plan, first, trainer),
    ):
        judge(explain_trainer(one, its_plan, settings, queue, NODES, has, NOW_S), facts)


@pytest.mark.parametrize(("state", "has", "gets"), EVERY)
def test_nor_where_something_else_decides(state: TrainerState, has: int, gets: int) -> None:
    trainer = _trainer(state)
    plan, settings = _planned(trainer, gets), Settings(reserve_nodes_per_type=0)
    facts = Facts(state=state, has=has, gets=gets, pool=N_NODES)
    stopped, ends = replace(facts, takes=False), replace(facts, ends=not state.is_final)
    ending = trainer if state.is_final else replace(trainer, cancelled_s=T0)
    ending = replace(ending, reason=ending.reason if state.is_final else "Cancelled by bob.")
    for one, its_facts, circumstances in (
        (trainer, stopped, Circumstances(is_draining=True)),
        (trainer, stopped, Circumstances(withheld=HELD)),
        (trainer, replace(facts, is_heard=False), Circumstances(is_heard=False)),
        (trainer, facts, Circumstances(settled=(BUDGET,))),
        (ending, ends, Circumstances()),
        (ending, ends, Circumstances(settled=(BUDGET,))),
    ):
        silent = () if its_facts.is_heard else ("The agent on n1 is silent.",)
        args = (one, plan, settings, (trainer,), NODES, has, NOW_S)
        judge((*silent, *explain_trainer(*args, circumstances=circumstances)), its_facts)


@pytest.mark.parametrize(("state", "has", "gets"), EVERY)
def test_nor_where_a_constraint_shaped_the_answer(state: TrainerState, has: int, gets: int) -> None:
    """It is told of each size that it would have had, in whatever circumstances."""
    trainer, settings = _trainer(state), Settings(reserve_nodes_per_type=0)
    plan = _planned(trainer, gets)
    facts = Facts(state=state, has=has, gets=gets, pool=N_NODES)
    stopped, ends = replace(facts, takes=False), replace(facts, ends=not state.is_final)
    ending = trainer if state.is_final else replace(trainer, cancelled_s=T0, reason=CANCELLED)
    for subject, its_facts, circumstances in (
        (trainer, facts, Circumstances()),
        (trainer, facts, Circumstances(settled=(BUDGET,))),
        (trainer, stopped, Circumstances(is_draining=True)),
        (trainer, stopped, Circumstances(withheld=HELD)),
        (ending, ends, Circumstances()),
    ):
        for size_without in SIZES:
            args = (subject, plan, settings, (trainer,), NODES, has, NOW_S)
            decision = Repeated(plan, size_without)
            shaped = constraint_sentences(effects_on(subject, decision, circumstances))
            sentences = explain_trainer(*args, circumstances=circumstances)
            judge((*sentences, *shaped), its_facts)


@pytest.mark.parametrize("has", SIZES)
@pytest.mark.parametrize("state", [s for s in TrainerState if not s.is_final])
def test_nor_where_the_pool_is_too_small(state: TrainerState, has: int) -> None:
    trainer, settings = _trainer(state), Settings(reserve_nodes_per_type=0)
    for n_idle in (0, 1):
        plan = _planned(trainer, 0, n_idle=n_idle)
        facts = Facts(state=state, has=has, gets=0, pool=n_idle)
        judge(explain_trainer(trainer, plan, settings, (trainer,), NODES, has, NOW_S), facts)


def test_the_judge_finds_the_contradiction_that_was_told() -> None:
    told = ("It has its maximum of 4 nodes (n_max).", "It has no nodes; it resumes.")
    for has in SIZES:
        with pytest.raises(AssertionError, match=r"of Facts"):
            judge(told, Facts(state=TrainerState.PARKED, has=has, gets=4, pool=6))
