"""Explains which constraints on any policy's answer shaped a trainer's nodes. Pure.

It is told from the journalled input alone, by taking the decision again (``decide.what_if``).
Called by ``views``.
"""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.daemon.explain.sizes import Circumstances
from bftrainer.decide.exclusion import without
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.decide.what_if import WhatIf
from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.model.errors import BftError
from bftrainer.model.size_words import size_words, units
from bftrainer.model.trainer import TrainerRecord
from bftrainer.model.views import ConstraintEffect
from milp.problem import ProblemError

SHOWN_NODES = 8  # by name


def what_if(
    given: DecisionInput | None, plan: Plan | None, policy: AllocationPolicy
) -> WhatIf | None:
    """Return a plan's decision, to be taken again without constraints; ``None``: it cannot be.

    That is so where the policy had no answer, where another policy is in force by now, and where
    not all of the plan was carried out, because it could not be journalled.

    Args:
        given: the plan's input; None: none yet.
        plan: what came of it.
        policy: that decided.
    """
    if given is None or plan is None or plan.trouble or not plan.pool:
        return None
    try:
        decision = WhatIf(without(given, plan.memory.left_out), policy)
    except (ProblemError, BftError):
        return None
    if decision.assignment != plan.assignment:
        return None
    return decision


def effects_on(
    record: TrainerRecord, decision: WhatIf | None, circumstances: Circumstances
) -> tuple[ConstraintEffect, ...]:
    """Return what shaped the nodes that a trainer is to have; (): nothing, or all else decides.

    Args:
        record: the trainer.
        decision: that gave it nodes.
        circumstances: what counts more than the decision.
    """
    is_ending = record.state.is_final or record.cancelled_s is not None
    if decision is None or is_ending or not circumstances.is_decided:
        return ()
    return decision.effects(record.trainer_id)


def constraint_sentences(
    effects: Sequence[ConstraintEffect], gpus_per_unit: int = 0
) -> tuple[str, ...]:
    """Say what the last decision would have given a trainer without these constraints."""
    sentences: list[str] = []
    for effect in effects:
        begin = f"Without {effect.meanings[0]}"
        if len(effect.names) > 1:
            begin = f"With neither {' nor '.join(effect.meanings)}"
        instead = _instead(effect, gpus_per_unit)
        sentences.append(f"{begin}, the last decision would have given it {instead}.")
    return tuple(sentences)


def _instead(effect: ConstraintEffect, gpus_per_unit: int) -> str:
    """Say the size that it would have had and has, or the nodes where their number is the same."""
    size, size_without = len(effect.nodes), len(effect.nodes_without)
    if size == size_without:
        names = [name for name in effect.nodes if name not in effect.nodes_without]
        names_without = [name for name in effect.nodes_without if name not in effect.nodes]
        return f"{_listed(names_without)} instead of {_listed(names)}"
    if not size_without:
        return f"no {units(min(gpus_per_unit, 1))} instead of {size}"
    words = size_words(size_without, gpus_per_unit)
    return f"{words} instead of {size or 'none'}"


def _listed(names: Sequence[str]) -> str:
    if len(names) > SHOWN_NODES:
        return f"{', '.join(names[:SHOWN_NODES])}, ..."
    return ", ".join(names)
