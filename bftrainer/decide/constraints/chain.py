"""Constraints on what any policy may answer, and the chain in which they are asked.

There are two kinds. A constraint *on the pool* gets an ``offer.Offer``, the whole pool with all
that the decision depends on, and may withhold nodes or leave them with a trainer. A constraint *on
the problem* gets the allocation problem that is stated of what is offered. Both may change the
question before the next one sees it, change the answer, or ask again. Each works for any policy
and knows nothing of the others; their order is written down once, in ``decide.policy_answer``.

Each has a name, which ``bftrainer explain --json`` gives to programs, and words for users.
``decide.what_if`` asks a chain without some of its members. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from bftrainer.decide.policies.base import Decided
from milp.problem import Problem
from milp.worth import allocation_value

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Described(Protocol):
    """A constraint, to those who tell of it."""

    name: ClassVar[str]  # stable: programs read it

    @property
    def in_words(self) -> str:
        """Continue the sentence "Without ...", with the option or the verb to read on."""


class Constraint(Described, Protocol[Question, Answer]):
    """A condition that an answer meets, whatever the policy is."""

    def answer(self, question: Question, /, ask: Callable[[Question], Answer]) -> Answer:
        """Answer the question by asking the next constraint, or the policy, once or more often.

        Raises:
            milp.problem.ProblemError: the problem is malformed.
        """

    def lifted(self, question: Question, /) -> Question:
        """Return the question as it would be asked if this constraint did not exist."""
        return question


Ask: TypeAlias = Callable[[Problem], Decided]
OnProblem: TypeAlias = Constraint[Problem, Decided]


def chained(
    constraints: Iterable[Constraint[Question, Answer]],
    ask: Callable[[Question], Answer],
    without: AbstractSet[str] = frozenset(),
    changed: list[Described] | None = None,
) -> Callable[[Question], Answer]:
    """Return the question that passes all constraints, the first one outermost.

    Args:
        constraints: in their order.
        ask: the policy, or what asks it.
        without: names of constraints that are left out, as if they did not exist.
        changed: gets those that change a question or an answer, the innermost first.
    """
    left_out: list[Constraint[Question, Answer]] = []
    for constraint in reversed(list(constraints)):
        if constraint.name in without:
            left_out.append(constraint)
        elif changed is None:
            ask = partial(constraint.answer, ask=ask)
        else:
            ask = partial(_watched, ask=ask, constraint=constraint, changed=changed)
    if not left_out:
        return ask

    def ask_lifted(question: Question) -> Answer:
        for constraint in left_out:
            question = constraint.lifted(question)
        return ask(question)

    return ask_lifted


def _watched(
    question: Question,
    ask: Callable[[Question], Answer],
    constraint: Constraint[Question, Answer],
    changed: list[Described],
) -> Answer:
    """Answer as the constraint does, and note it if it bends the question or the answer."""
    questions: list[tuple[Question, Answer]] = []

    def ask_and_note(next_question: Question) -> Answer:
        next_answer = ask(next_question)
        questions.append((next_question, next_answer))
        return next_answer

    answer = constraint.answer(question, ask_and_note)
    if questions != [(question, answer)] or constraint.lifted(question) != question:
        changed.append(constraint)
    return answer


def stated(problem: Problem, decided: Decided, assignment: Mapping[str, str]) -> Decided:
    """Return the answer with this assignment and what it is worth."""
    worth = allocation_value(problem, assignment)
    allocation = replace(decided.allocation, assignment=assignment, objective=worth)
    return replace(decided, allocation=allocation)
