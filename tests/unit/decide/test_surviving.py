"""One trainer, job or node on which a decision fails: the others are decided without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from bftrainer.daemon.explain.sizes import explain_trainer
from bftrainer.decide.exclusion import sentences, without_the_gone
from bftrainer.decide.isolation import MOST_TRIES, RETRY_S, decide_surely
from bftrainer.decide.policies.base import AllocationPolicy, Context, Decided, Traits
from bftrainer.decide.policies.milp import POLICY
from bftrainer.model import canonical
from bftrainer.model.cluster import Job, NodeState, Snapshot
from bftrainer.model.decision import (
    DecisionInput,
    DecisionRecord,
    Kind,
    LeftOut,
    Memory,
    Plan,
    Settings,
)
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord
from milp.problem import Curve, Problem
from tests.support.snapshots import (
    T0,
    held,
    idle_nodes,
    pending,
    record,
    released,
    snapshot,
    with_state,
)

SETTINGS = Settings(reserve_nodes_per_type=0)
HELD = with_state(idle_nodes(6), NodeState.ALLOCATED, *(n.name for n in idle_nodes(6)))


@dataclass(slots=True)
class Picky:
    """The exact policy, but for problems that it cannot stand."""

    fails_on: Callable[[Problem], bool]
    calls: int = 0
    name: str = "picky"
    traits: Traits = field(default_factory=Traits)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        self.calls += 1
        if self.fails_on(problem):
            raise RuntimeError("what nobody thought of")
        return POLICY.allocate(problem, context)


@dataclass(slots=True, kw_only=True)
class Site:
    """Decides again and again; counts what failed."""

    policy: AllocationPolicy = POLICY
    memory: Memory = field(default_factory=Memory)
    failures: list[Exception] = field(default_factory=list)

    def decide(
        self,
        seen: Snapshot,
        *trainers: TrainerRecord,
        pilots: Any = (),
        after_s: float = 0.0,
    ) -> Plan:
        given = DecisionInput(
            now_s=T0 + after_s,
            snapshot=seen,
            is_new_snapshot=True,
            pilots=pilots,
            trainers=trainers,
            settings=SETTINGS,
            memory=self.memory,
        )
        before = canonical.digest(given) if not _is_hostile(given) else ""
        plan = decide_surely(given, self.policy, self.failures.append)
        if before:  # pure, and journalled with all that it depends on
            again = canonical.decode(canonical.encode(given), DecisionInput)
            assert canonical.digest(decide_surely(again, self.policy)) == canonical.digest(plan)
        self.memory = plan.memory
        return plan


def _is_hostile(given: DecisionInput) -> bool:
    try:
        canonical.encode(given)
    except canonical.CanonicalError:
        return True
    return False


def _with_curve(trainer_id: str, sizes: tuple[int, ...], *rates: float) -> TrainerRecord:
    plain = record(trainer_id)
    return replace(plain, spec=replace(plain.spec, curve=Curve(sizes=sizes, samples_per_s=rates)))


BAD = [
    _with_curve("t2", (1,), 1e-20),
    _with_curve("t2", (1,), 1e16),
    _with_curve("t2", (2**40,), 1.0),
    _with_curve("t2", (10**400,), 1.0),
    _with_curve("t2", (1, 10**400), 1.0, 2.0),
    record("t2", costs=MeasuredCosts(rescale_up_s=1e300)),
    record("t2", n_max=10**400),
]


@pytest.mark.parametrize("bad", BAD)
def test_a_trainer_that_no_problem_can_be_stated_with_is_left_out_by_name(
    bad: TrainerRecord,
) -> None:
    site, seen = Site(), snapshot(idle_nodes(6))
    plan = site.decide(seen, record("t1"), bad, record("t3"))
    alone = Site().decide(seen, record("t1"), record("t3"))
    assert plan.assignment == alone.assignment
    assert set(plan.assignment.values()) == {"t1", "t3"}
    assert (plan.claims, plan.trouble) == (alone.claims, "")
    (one,) = plan.memory.left_out.values()
    assert (one.kind, one.name) == (Kind.TRAINER, "t2")
    assert "t2" in one.reason
    queue = (record("t1"), bad, record("t3"))
    said = " ".join(explain_trainer(bad, plan, SETTINGS, queue, seen.nodes or (), 0))
    assert said.startswith("BFT-2116: decisions fail on trainer t2 and leave it out.")
    assert "cancel it and submit it with other sizes" in said
    assert len(said) < 800


def test_whoever_is_left_out_loses_its_nodes_to_the_others() -> None:
    site = Site(memory=Memory(assignment={"n1": "t2", "n2": "t1"}))
    plan = site.decide(snapshot(HELD), record("t1"), BAD[1], pilots=held("n1", "n2"))
    assert plan.assignment == {"n1": "t1", "n2": "t1"}


def _names(problem: Problem) -> set[str]:
    return {t.trainer_id for t in problem.trainers}


def test_a_failure_that_names_nobody_is_traced_by_halves() -> None:
    policy = Picky(lambda problem: "t33" in _names(problem))
    site = Site(policy=policy)
    trainers = [record(f"t{k}") for k in range(1, 65)]
    plan = site.decide(snapshot(idle_nodes(6)), *trainers)
    assert [one.name for one in plan.memory.left_out.values()] == ["t33"]
    assert plan.assignment
    assert plan.trouble == ""
    assert policy.calls <= 2 * MOST_TRIES  # decided twice
    assert len(site.failures) == 1


def test_who_was_left_out_is_left_out_at_once_and_tried_again_later() -> None:
    is_broken = True
    policy = Picky(lambda problem: is_broken and "t2" in _names(problem))
    site, seen = Site(policy=policy), snapshot(idle_nodes(6))
    trainers = [record(f"t{k}", n_max=2) for k in range(1, 4)]
    site.decide(seen, *trainers)
    policy.calls = 0
    plan = site.decide(seen, *trainers, after_s=RETRY_S - 1.0)
    assert policy.calls == 2  # one for each time it is decided
    assert len(site.failures) == 1
    assert set(plan.assignment.values()) == {"t1", "t3"}
    is_broken = False
    plan = site.decide(seen, *trainers, after_s=RETRY_S)
    assert set(plan.assignment.values()) == {"t1", "t2", "t3"}
    assert plan.memory.left_out == {}


def test_who_is_gone_is_left_out_no_more() -> None:
    out = [
        LeftOut(kind=kind, name=name, reason="it fails", since_s=T0)
        for kind, name in [(Kind.TRAINER, "t1"), (Kind.TRAINER, "t2"), (Kind.REQUEST, "7")]
    ]
    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot(idle_nodes(2)),
        is_new_snapshot=True,
        pilots=(),
        trainers=(record("t1"),),
        settings=SETTINGS,
        memory=Memory(left_out={one.key: one for one in out}),
    )
    assert without_the_gone(given).memory.left_out == {"trainer t1": out[0]}
    unread = replace(given, snapshot=replace(given.snapshot, jobs=None))
    assert without_the_gone(unread) is unread


def test_a_node_is_left_out_when_decisions_fail_on_it() -> None:
    site = Site(policy=Picky(lambda problem: any(n.name == "n4" for n in problem.nodes)))
    plan = site.decide(snapshot(idle_nodes(6)), record("t1", n_max=3), record("t2", n_max=3))
    assert set(plan.assignment) == {"n1", "n2", "n3", "n5", "n6"}
    assert [(o.kind, o.name) for o in plan.memory.left_out.values()] == [(Kind.NODE, "n4")]


def test_a_node_is_found_however_many_trainers_there_are() -> None:
    site = Site(policy=Picky(lambda problem: any(n.name == "n4" for n in problem.nodes)))
    plan = site.decide(snapshot(idle_nodes(6)), *(record(f"t{k}") for k in range(40)))
    assert list(plan.memory.left_out) == ["node n4"]
    assert set(plan.assignment) == {"n1", "n2", "n3", "n5", "n6"}


def test_several_at_fault_are_left_out_each_by_name() -> None:
    site = Site(policy=Picky(lambda problem: bool({"t7", "t39"} & _names(problem))))
    plan = site.decide(snapshot(idle_nodes(6)), *(record(f"t{k}") for k in range(40)))
    assert set(plan.memory.left_out) == {"trainer t7", "trainer t39"}
    assert plan.assignment


def test_a_policy_that_always_fails_leaves_everybody_what_they_have_and_jobs_get_theirs() -> None:
    policy = Picky(lambda _: True)
    site = Site(policy=policy, memory=Memory(assignment={"n1": "t1", "n2": "t2", "n3": "t2"}))
    seen = snapshot(HELD[:3], [pending("7", 1)])
    pilots = held("n1", "n2", "n3")
    plan = site.decide(seen, record("t1"), record("t2"), pilots=pilots)
    assert released(plan) == {"n1"}
    assert plan.assignment == {"n2": "t2", "n3": "t2"}
    assert plan.trouble.startswith("BFT-2118: policy milp gives no usable answer.")
    assert "what nobody thought of" in plan.trouble
    queue = (record("t1"), record("t2"))
    said = explain_trainer(queue[1], plan, SETTINGS, queue, HELD, 2)
    assert said == (plan.trouble, "Until this is fixed, no trainer's nodes change.")
    policy.calls = 0
    site.decide(seen, record("t1"), record("t2"), pilots=pilots, after_s=1.0)
    assert policy.calls == 2  # decided twice, and nobody searched again
    site.policy = POLICY
    plan = site.decide(seen, record("t1"), record("t2"), pilots=pilots, after_s=2.0)
    assert (plan.trouble, plan.memory.left_out) == ("", {})


def test_an_allocation_worth_no_number_is_no_answer() -> None:
    class Boastful(Picky):
        def allocate(self, problem: Problem, context: Context, /) -> Decided:
            found = POLICY.allocate(problem, context).allocation
            return Decided(allocation=replace(found, objective=float("inf")))

    site = Site(policy=Boastful(lambda _: False), memory=Memory(assignment={"n1": "t1"}))
    plan = site.decide(snapshot(HELD[:2]), record("t1"), pilots=held("n1", "n2"))
    assert plan.assignment == {"n1": "t1"}
    assert "allocation.objective: must be a finite number, not inf" in plan.trouble


def _hostile(job: Job, **fields: Any) -> Job:
    return replace(job, **fields)


def test_a_job_that_cannot_be_judged_gets_nodes_like_one_we_do_not_understand() -> None:
    bad = _hostile(pending("7", 1), wants=7)
    site = Site(memory=Memory(assignment=dict.fromkeys(("n1", "n2", "n3"), "t1")))
    seen = snapshot(HELD[:3], [bad, pending("8", 1)])
    plan = site.decide(seen, record("t1"), pilots=held("n1", "n2", "n3"))
    assert {r.for_job for r in plan.releases} == {"7", "8"}
    assert [(o.kind, o.name) for o in plan.memory.left_out.values()] == [(Kind.REQUEST, "7")]
    (said,) = sentences(plan.memory.left_out)
    assert said.startswith("BFT-2117: decisions fail on the request of job 7")
    assert set(plan.assignment.values()) == {"t1"}


def test_a_job_whose_number_of_nodes_is_none_gets_one_and_the_next_is_served() -> None:
    bad = _hostile(pending("7", 1), n_nodes="many")
    site = Site(memory=Memory(assignment=dict.fromkeys(("n1", "n2", "n3"), "t1")))
    seen = snapshot(HELD[:3], [bad, pending("8", 1)])
    plan = site.decide(seen, record("t1"), record("t2"), pilots=held("n1", "n2", "n3"))
    assert [r.for_job for r in plan.releases] == ["7", "8"]
    assert [(o.kind, o.name) for o in plan.memory.left_out.values()] == [(Kind.REQUEST, "7")]
    assert plan.trouble == ""


def test_when_nothing_can_be_decided_nothing_is_taken_and_nothing_released() -> None:
    site = Site(memory=Memory(assignment={"n1": "t1"}))
    plan = site.decide(snapshot(HELD[:1]), record("t1"), pilots=(None,))
    assert plan.trouble.startswith("BFT-2118: nothing could be decided (AttributeError")
    assert plan.assignment == {"n1": "t1"}
    assert (plan.claims, plan.releases) == ((), ())


def test_a_decision_that_left_somebody_out_is_journalled_and_read_back() -> None:
    seen = snapshot(idle_nodes(3))
    given = DecisionInput(
        now_s=T0,
        snapshot=seen,
        is_new_snapshot=True,
        pilots=(),
        trainers=(record("t1"), BAD[3]),
        settings=SETTINGS,
        memory=Memory(),
    )
    plan = decide_surely(given, POLICY)
    one = DecisionRecord(event=None, input=given, policy_hash="", plan=plan, took_ms=1.0)
    assert canonical.decode(canonical.encode(one), DecisionRecord) == one
    assert "trainer t2" in plan.memory.left_out


def test_a_job_that_an_earlier_release_left_out_as_a_whole_is_served_again() -> None:
    known = LeftOut(kind=Kind.JOB, name="7", reason="?", since_s=T0 - 1.0)
    site = Site(memory=Memory(assignment={"n1": "t1"}, left_out={known.key: known}))
    seen = snapshot(HELD[:1], [pending("7", 1)])
    plan = site.decide(seen, record("t1"), pilots=held("n1"))
    assert [r.for_job for r in plan.releases] == ["7"]
    assert plan.memory.left_out == {}


def test_whoever_wants_failures_raised_gets_them() -> None:
    def surface(failure: Exception) -> None:
        raise failure

    given = DecisionInput(
        now_s=T0,
        snapshot=snapshot(idle_nodes(3)),
        is_new_snapshot=True,
        pilots=(),
        trainers=(record("t1"), record("t2")),
        settings=SETTINGS,
        memory=Memory(),
    )
    with pytest.raises(RuntimeError, match="nobody thought of"):
        decide_surely(given, Picky(lambda _: True), surface)
