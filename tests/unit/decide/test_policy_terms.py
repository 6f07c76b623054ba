"""What a policy says it went by is what its rule compares: against formulas of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.daemon.explain.constraints import what_if
from bftrainer.daemon.explain.sizes import explain_trainer, policy_terms
from bftrainer.decide.isolation import decide_surely
from bftrainer.decide.policies.base import (
    Context,
    Standing,
    load_policy,
    options_of,
    policy_names,
)
from bftrainer.decide.policy_answer import ask
from bftrainer.model import canonical
from bftrainer.model.decision import DecisionRecord, Term
from milp.problem import Problem, ProblemTrainer
from milp.worth import curve_at
from tests.conformance.policy import STANDINGS
from tests.support.examples import examples
from tests.support.policies import Scripted
from tests.support.problems import problems
from tests.support.snapshots import held, idle_nodes, record
from tests.unit.decide.test_policy_protocol import SETTINGS, Site

Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A trainer, its size and what it should follow from."""

    numbers: Numbers
    size: int
    one: ProblemTrainer
    standing: Standing
    problem: Problem

    def rate(self, size: float) -> float:
        low = math.floor(size)
        at = [curve_at(self.one.curve, n) if n else 0.0 for n in (low, low + 1)]
        return at[0] + (size - low) * (at[1] - at[0])

    def left_s(self, size: int) -> float:
        left = self.standing.left_samples
        if left is None:
            left = self.problem.t_fwd_s * self.rate(self.one.n_min)
        if left <= 0.0:
            return 0.0
        return left / self.rate(size) if self.rate(size) else math.inf

    def is_near(self, name: str, value: float) -> bool:
        return self.numbers[name] == pytest.approx(value, rel=1e-6, abs=1e-9)


def rigid(case: Case) -> bool:
    return case.size in (0, case.numbers["requested"]) and case.numbers["place in the queue"] >= 1


def srtf(case: Case) -> bool:
    told_s = case.numbers.get("remaining at the size requested")
    if case.standing.left_samples is None:
        return rigid(case) and told_s is None
    return rigid(case) and told_s == pytest.approx(case.left_s(int(case.numbers["requested"])))


def las(case: Case) -> bool:
    return rigid(case) and case.is_near("attained", case.standing.attained_node_s / 3600.0)


def tiresias(case: Case) -> bool:
    is_second = case.standing.attained_node_s >= 57_600.0
    return las(case) and case.numbers["queue"] == 1 + is_second


def filling(rule: Callable[[Case], bool]) -> Callable[[Case], bool]:
    def agrees(case: Case) -> bool:
        if "needs at least" in case.numbers:
            return case.size == 0
        return case.size >= case.one.n_min and rule(case)

    return agrees


def optimus(case: Case) -> bool:
    saved = case.left_s(case.size) - case.left_s(case.size + 1)
    can_grow = case.numbers["saved by one more"] > 0.0
    return case.is_near("time left", case.left_s(case.size)) and (
        not can_grow or case.is_near("saved by one more", saved)
    )


def drf(case: Case) -> bool:
    share = case.size / len(case.problem.nodes)
    weight = case.one.weight
    return case.is_near("dominant share over weight", share / weight if weight else math.inf)


def gavel(case: Case) -> bool:
    fair = case.rate(case.numbers["equal share"])
    rate = case.rate(case.size)
    return case.is_near("normalised throughput", rate / fair if fair > 0.0 else rate)


def pollux(case: Case) -> bool:
    return case.is_near("goodput", case.rate(case.size))


def themis(case: Case) -> bool:
    return case.numbers["rho at its size"] >= 0.0


def tetris(case: Case) -> bool:
    return rigid_size(case) and case.numbers["of it for the work left"] <= 0.0


def rigid_size(case: Case) -> bool:
    return case.size in (0, case.numbers["requested"])


def equal_share(case: Case) -> bool:
    among = case.numbers["trainers that share them"]
    return case.is_near("equal share", case.numbers["nodes of its type"] / max(1.0, among))


def fcfs(case: Case) -> bool:
    fits = int(min(case.numbers["left at its turn"], case.numbers["can use"]))
    return case.size == (fits if fits >= case.one.n_min else 0)


def no_rescale(case: Case) -> bool:
    there = case.numbers.get("of them still there")
    if there is None:
        fits = int(min(case.numbers["left at its turn"], case.one.n_max))
        return case.size == (fits if fits >= case.one.n_min else 0)
    is_whole = case.numbers["nodes it runs on"] == there
    return case.size == 0 or (is_whole and case.size == there)


def ibm_dp(case: Case) -> bool:
    if "entered as number" not in case.numbers:
        return case.size == 0
    told_at = case.numbers[f"scaling factor at {case.size}"]
    single = case.rate(1)
    return case.size >= case.numbers["least size now"] and (
        single == 0.0 or told_at == pytest.approx(case.rate(case.size) / single, abs=1e-6)
    )


def climbs(case: Case) -> bool:
    """Each s by its formula; each U - C by the default options, no pause."""
    if "needs at least" in case.numbers:
        return case.size == 0
    known = {point.size: point.samples_per_s for point in case.standing.points}

    def rate(size: int) -> float:
        return known[size] if known else max(case.rate(size), 1e-9)

    for name in case.numbers:
        if name.startswith("s from "):
            low, high = (int(word) for word in name.split() if word.isdigit())
            per_node = rate(low) / low
            if not case.is_near(name, (rate(high) - rate(low)) / (high - low) / per_node):
                return False
        elif name.startswith("U - C at "):
            size = int(name.split()[-1])
            if not case.is_near(name, worth(case, size, rate(size))):
                return False
    return True


def worth(case: Case, size: int, rate: float) -> float:
    """100 $ at once, 0 $ after a day; a cent for a node and hour."""
    left_s = (case.standing.left_samples or 0.0) / rate
    late_s = min(86_400.0, 2000.0 - case.standing.submitted_s + left_s)
    return 100.0 * (1.0 - late_s / 86_400.0) - 0.01 / 3600.0 * left_s * size


def utility_exact(case: Case) -> bool:
    here = case.numbers.get(f"U - C at {case.size}")
    if here is None or case.standing.left_samples is None or not case.standing.has_rates:
        return climbs(case)
    return math.isfinite(here)


AGREES: Mapping[str, Callable[[Case], bool]] = {
    "fifo": rigid,
    "srtf": srtf,
    "las": las,
    "tiresias": tiresias,
    "tetris": tetris,
    "optimus": filling(optimus),
    "drf": filling(drf),
    "gavel-max-min": filling(gavel),
    "pollux": filling(pollux),
    "themis": filling(themis),
    "equal-share": equal_share,
    "fcfs-greedy": fcfs,
    "no-rescale": no_rescale,
    "ibm-dp": ibm_dp,
    "throughput-scaling": climbs,
    "utility": climbs,
    "utility-exact": utility_exact,
}


@pytest.mark.parametrize("name", sorted(AGREES))
def test_the_terms_are_the_numbers_of_the_rule(name: str) -> None:
    policy = load_policy(name)

    @settings(max_examples=examples(20, of=4), deadline=None)
    @given(problems(max_nodes=9, max_trainers=4, classes="a"), st.data())
    def holds(problem: Problem, data: st.DataObject) -> None:
        standings = {one.trainer_id: data.draw(STANDINGS) for one in problem.trainers}
        context = Context(now_s=2000.0, options=options_of(policy, {}), trainers=standings)
        decided = ask(policy, problem, context)
        sizes = decided.allocation.sizes()
        for one in problem.trainers:
            if terms := decided.terms.get(one.trainer_id):
                case = Case(
                    numbers={term.name: term.value for term in terms},
                    size=sizes.get(one.trainer_id, 0),
                    one=one,
                    standing=standings[one.trainer_id],
                    problem=problem,
                )
                assert AGREES[name](case), case

    holds()


@pytest.mark.parametrize("name", policy_names())
def test_they_are_told_from_the_journal_s_record_alone(name: str) -> None:
    policy = load_policy(name)
    site = Site(policy=policy, settings=replace(SETTINGS, policy=name))
    queue = record("t1"), record("t2"), record("t3", n_min=3, n_max=4)
    given = site.given(*queue, pilots=held("n1"))
    plan = decide_surely(given, policy)
    kept = DecisionRecord(event=None, input=given, policy_hash="", plan=plan, took_ms=0.0)
    read = canonical.decode(canonical.encode(kept), DecisionRecord)
    terms = policy_terms(what_if(read.input, read.plan, policy))
    assert terms == policy_terms(what_if(given, plan, policy))
    assert terms.keys() == (set() if name == "milp" else {"t1", "t2", "t3"})
    said = " ".join(explain_trainer(queue[0], plan, site.settings, queue, idle_nodes(4), 0))
    assert name == "milp" or f"The policy {name} gives it" in said


def tells(_problem: Problem, _context: Context) -> dict[str, Any]:
    return {"terms": {"t1": (Term("hunger", 3.0, "nodes"), Term("patience", math.inf, "s"))}}


def test_terms_that_are_not_finite_are_not_told() -> None:
    site = Site(policy=Scripted(answer=tells))
    given = site.given(record("t1"))
    plan = decide_surely(given, site.policy)
    assert policy_terms(what_if(given, plan, site.policy)) == {
        "t1": (Term("hunger", 3.0, "nodes"),)
    }
    assert policy_terms(what_if(given, replace(plan, trouble="It fails."), site.policy)) == {}
    assert policy_terms(what_if(None, plan, site.policy)) == {}
