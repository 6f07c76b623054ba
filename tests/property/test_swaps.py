"""Nodes that move between users: the answer is legal, and its gap bounds every other answer."""

from __future__ import annotations

import itertools
from fractions import Fraction

from hypothesis import event, given, settings
from hypothesis import strategies as st

from bftrainer.decide.constraints import swaps
from bftrainer.decide.constraints.swaps import Owners
from bftrainer.decide.policies.base import Decided
from milp.check import find_violations
from milp.problem import Allocation, Problem
from milp.solve import solve
from milp.worth import allocation_value
from tests.support.examples import examples
from tests.support.late_nodes import made_with_swaps
from tests.support.problems import problems

SWAP_S = 2.0


@st.composite
def _shared(draw: st.DrawFn) -> tuple[Problem, Owners]:
    """A problem of two users; nodes that train have a pilot of their trainer's user."""
    problem = draw(problems(max_nodes=4, max_trainers=3, extras=True))
    users = st.sampled_from(["ann", "bob"])
    trainers = {t.trainer_id: draw(users) for t in problem.trainers}
    of_current = {n: trainers[t.trainer_id] for t in problem.trainers for n in t.current}
    pilots = {
        node.name: user
        for node in problem.nodes
        if (user := of_current.get(node.name) or draw(st.sampled_from(["", "ann", "bob"])))
    }
    return problem, Owners(pilots=pilots, trainers=trainers)


def _value(problem: Problem, owners: Owners, assignment: dict[str, str]) -> float | None:
    """What a map is worth with the price of its swaps, by the clock; None: it is not legal."""
    value = allocation_value(problem, assignment)
    stated = Allocation(assignment=assignment, objective=value, node_price=0.0)
    if find_violations(problem, stated):
        return None
    for trainer in problem.trainers:
        made = [
            made_with_swaps(problem, trainer, assignment, owners, later_s)
            for later_s in (0.0, SWAP_S)
        ]
        # A trainer that is slower with more nodes gains nothing by a delay.
        value -= float(max(Fraction(0), made[0] - made[1]))
    return value


@settings(max_examples=examples(150), deadline=None)
@given(_shared())
def test_the_gap_bounds_every_answer(shared: tuple[Problem, Owners]) -> None:
    problem, owners = shared

    def answer(asked: Problem) -> Decided:
        return Decided(allocation=solve(asked))

    found = swaps.PricedSwaps(owners=owners, swap_s=SWAP_S).answer(problem, answer).allocation
    value = _value(problem, owners, dict(found.assignment))
    assert value is not None, find_violations(problem, found)
    best = value
    choices = (None, *(t.trainer_id for t in problem.trainers))
    for chosen in itertools.product(choices, repeat=len(problem.nodes)):
        pairs = zip(problem.nodes, chosen, strict=True)
        other = _value(problem, owners, {node.name: one for node, one in pairs if one})
        best = best if other is None else max(best, other)
    slack = 1e-9 * (1.0 + abs(best))
    assert best - value <= found.gap + slack
    event("best" if best - value <= slack else "not the best")
    own, swapped = swaps.split(found.assignment, owners, {}, ())
    assert {**own, **swapped} == found.assignment
    assert owners.swaps(own) == []
