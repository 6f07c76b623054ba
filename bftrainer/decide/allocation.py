"""Allocates the nodes of the pool to trainers by the site's policy: a stage of ``decision``.

``policy_answer`` asks the policy through the constraints that any answer must meet. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bftrainer.decide import carving, policy_answer
from bftrainer.decide.constraints.offer import Offer
from bftrainer.decide.draft import Draft

MOST_CARVINGS: Final = 3  # answers that may change which free GPUs are one unit; one is usual


def stage(draft: Draft) -> Draft:
    """Allocate the pool; without a policy every trainer keeps its nodes that are still in it."""
    answer = policy_answer.allocated(offered(draft))
    assignment = answer.assignment
    if draft.hosts is not draft.census:
        for _ in range(MOST_CARVINGS):
            units = carving.units_of(draft, assignment)
            if not units:
                break
            draft = carving.carved(draft, units)
            answer = policy_answer.allocated(offered(draft))
            assignment = answer.assignment
        assignment = carving.without_loose_gpus(draft, assignment)
    wakes_s = draft.wakes_s
    if answer.decided is not None and answer.decided.wake_at_s is not None:
        wakes_s = (*wakes_s, answer.decided.wake_at_s)
    return replace(
        draft,
        wakes_s=wakes_s,
        memory=answer.memory,
        decided=answer.decided,
        assignment=assignment,
        swaps=answer.swaps,
    )


def offered(draft: Draft) -> Offer:
    """Return what is to be allocated: the pool, with all that the decision depends on."""
    return Offer(
        given=draft.given,
        memory=draft.memory,
        pool=draft.pool,
        policy=draft.policy,
        names={node.name for node in draft.pool.nodes},
    )
