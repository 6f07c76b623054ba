"""Constraints between a decision's problem and the policy, in order.

A constraint may change the problem before the next one sees it, change the answer, or ask again
with another problem. Each works for any policy and knows nothing of the others; their order is
written down once, in ``decide.policy_answer``. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

from bftrainer.decide.policies.base import Decided
from milp.problem import Problem
from milp.worth import allocation_value

Ask: TypeAlias = Callable[[Problem], Decided]


class Constraint(Protocol):
    """One of them."""

    @property
    def name(self) -> str:
        """Its name in the list of constraints."""

    def answer(self, problem: Problem, ask: Ask) -> Decided:
        """Answer the problem by asking the next constraint, or the policy, once or more often.

        Raises:
            milp.problem.ProblemError: the problem is malformed.
        """


def chained(constraints: Sequence[Constraint], ask: Ask) -> Ask:
    """Return the question that passes all constraints, the first one outermost."""
    for constraint in reversed(constraints):
        ask = partial(constraint.answer, ask=ask)
    return ask


def stated(problem: Problem, decided: Decided, assignment: Mapping[str, str]) -> Decided:
    """Return the answer with this assignment and what it is worth."""
    worth = allocation_value(problem, assignment)
    allocation = replace(decided.allocation, assignment=assignment, objective=worth)
    return replace(decided, allocation=allocation)
