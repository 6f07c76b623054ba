"""Trainers that a decision leaves as they are: their budget of rescales is used up. Pure.

They keep the nodes they were given, as far as these are still to be had, and get no others;
the rest is allocated without them. One that would fall below its n_min is allocated like
any other. ``DecisionInput.settled_until_s`` says who; called by ``decision``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bftrainer.decide.types import DecisionInput


def kept(given: DecisionInput, held: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return node → trainer for those that are not moved.

    Args:
        given: the decision's input.
        held: trainer -> its nodes among those that can be allocated.
    """
    if not given.settled_until_s:
        return {}
    return {
        node: record.trainer_id
        for record in given.trainers
        if given.now_s < given.settled_until_s.get(record.trainer_id, 0.0)
        and len(held.get(record.trainer_id, ())) >= max(1, record.spec.n_min)
        for node in held[record.trainer_id]
    }
