"""Tells a decision in the policy's own terms, by taking it again from its input. Pure.

Nothing of it is journalled: the same terms follow from the decision's record. Called by
``service`` (explain).
"""

from __future__ import annotations

import math

from bftrainer.decide.decision import terms_of
from bftrainer.decide.exclusion import without
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.model.terms import Term, Terms


def told(given: DecisionInput | None, plan: Plan | None, policy: AllocationPolicy) -> Terms:
    """Return what the sizes of a plan follow from, by trainer; {}: the policy does not tell.

    Args:
        given: the plan's input; None: none yet.
        plan: what came of it.
        policy: that decided.
    """
    if given is None or plan is None or plan.allocation is None or plan.trouble:
        return {}
    terms = terms_of(without(given, plan.memory.left_out), policy)
    return {
        trainer_id: tuple([Term(t.name, float(t.value), t.unit) for t in some if _is_number(t)])
        for trainer_id, some in terms.items()
    }


def _is_number(term: Term) -> bool:
    return math.isfinite(term.value)
