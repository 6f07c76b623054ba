"""Dominant resource fairness.

Source: Ghodsi et al., "Dominant Resource Fairness" (NSDI'11): the next task goes to the user whose
dominant share, the largest share of any resource, is smallest; shares are divided by the users'
weights. Here a resource is a class of nodes, a task is one node, a user is a trainer. With one
class and equal weights this is equal share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.greedy_steps import Step, admit, fill, terms_of
from bftrainer.model.decision import Term
from milp.problem import Problem


def dominant_share(used: Sequence[float], capacity: Sequence[float], weight: float = 1.0) -> float:
    """Return the largest share of any resource, by weight; that of weight 0 is infinite."""
    share = max([n / total for n, total in zip(used, capacity, strict=True) if total], default=0.0)
    if weight > 0.0:
        return share / weight
    return math.inf


def _allocate(problem: Problem, context: Context, /) -> Decided:  # noqa: ARG001
    """Each trainer has n_min, then the smallest dominant share gets the next node."""
    handing = Handing(problem)

    def share(j: int) -> float:
        return dominant_share(handing.given(j), handing.counts, handing.trainers[j].weight)

    def next_step(j: int, size: int) -> Step:
        return Step(-share(j), size + 1)

    def why(j: int) -> tuple[Term, ...]:
        return (Term("dominant share over weight", share(j)),)

    admitted = admit(handing, range(len(handing.trainers)))
    fill(admitted, next_step, handing.take)
    return handing.answer(POLICY.name, terms_of(handing, admitted, why))


POLICY = Policy(
    "drf",
    Traits(
        about=About(
            does="dominant resource fairness",
            optimises="the smallest share of the kind of node that a trainer uses most",
            source="Ghodsi et al., Dominant Resource Fairness, 2011",
        ),
        follows_curves=False,
    ),
    _allocate,
)
