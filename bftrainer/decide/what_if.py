"""Takes a decision again without some constraints, to tell what they made of it. Pure.

So what is told of a constraint needs no rule of its own, and holds for those that are yet to be
written. A constraint that changed neither a question nor an answer made nothing of the decision,
and is not tried. Where a trainer's nodes would be the same without any one of the constraints, but
not without several of them together, the fewest that are found by leaving out one after another
are told. Called by ``daemon.explain``, beside its event loop: it takes one allocation for each
constraint that changed something, and as many again where several work together.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from bftrainer.decide.allocation import offered
from bftrainer.decide.constraints.chain import Described
from bftrainer.decide.constraints.offer import Settlement
from bftrainer.decide.decision import before_allocation
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.decide.policy_answer import allocated
from bftrainer.model.decision import DecisionInput, Terms
from bftrainer.model.views import ConstraintEffect


class WhatIf:
    """The allocation of a decision, and those that it would be without some constraints."""

    def __init__(self, given: DecisionInput, policy: AllocationPolicy) -> None:
        """Allocate as the decision did.

        Raises:
            milp.problem.ProblemError: the problem is malformed.
            BftError: as of ``policy_answer.allocated``.
        """
        self._offer = offered(before_allocation(given, policy))
        self._words: dict[str, str] = {}  # of constraints that changed something, by name
        settlement = self._allocated(frozenset())
        self.assignment: Mapping[str, str] = settlement.assignment
        self.terms: Terms = {}  # the numbers that the policy went by
        if settlement.decided:
            self.terms = settlement.decided.terms
        self._changed = tuple(self._words)  # in the decision itself
        # By the names of those left out; None: there is no valid answer without them.
        self._assignments: dict[AbstractSet[str], Mapping[str, str] | None] = {
            frozenset(): self.assignment
        }

    def effects(self, trainer_id: str) -> tuple[ConstraintEffect, ...]:
        """Return which constraints gave a trainer other nodes than it would have without them."""
        effects: tuple[ConstraintEffect, ...] = ()
        for name in self._changed:
            if self._is_shaped(trainer_id, {name}):
                effects += (self._effect(trainer_id, (name,)),)
        if effects:
            return effects
        names = self._together(trainer_id)
        if names:
            return (self._effect(trainer_id, names),)
        return ()

    def _together(self, trainer_id: str) -> tuple[str, ...]:
        """Return constraints without which, taken together, it would have other nodes."""
        names: set[str] = set()
        while names != self._words.keys():  # one may have left another nothing to change
            names = set(self._words)
            self._without(names)
        if not self._is_shaped(trainer_id, names):
            return ()
        ordered_names = tuple(self._words)
        for name in ordered_names:
            if self._is_shaped(trainer_id, names - {name}):
                names.remove(name)
        return tuple([name for name in ordered_names if name in names])

    def _is_shaped(self, trainer_id: str, names: AbstractSet[str]) -> bool:
        """Return whether it would have more or fewer nodes without these, or lose one it has.

        Which of several equal nodes it is to get first is of no interest to anybody.
        """
        assignment = self._without(names)
        if assignment is None:
            return False
        nodes = _nodes_of(trainer_id, self.assignment)
        nodes_without = _nodes_of(trainer_id, assignment)
        if len(nodes) != len(nodes_without):
            return True
        held_nodes = _nodes_of(trainer_id, self._offer.memory.assignment)
        return bool(held_nodes & (nodes ^ nodes_without))

    def _effect(self, trainer_id: str, names: tuple[str, ...]) -> ConstraintEffect:
        return ConstraintEffect(
            names=names,
            meanings=tuple([self._words[name] for name in names]),
            nodes=tuple(sorted(_nodes_of(trainer_id, self.assignment))),
            nodes_without=tuple(sorted(_nodes_of(trainer_id, self._without(set(names)) or {}))),
        )

    def _without(self, names: AbstractSet[str]) -> Mapping[str, str] | None:
        key = frozenset(names)
        if key not in self._assignments:
            try:
                self._assignments[key] = self._allocated(key).assignment
            except Exception:  # noqa: BLE001 - a policy may fail on what it is never asked
                self._assignments[key] = None
        return self._assignments[key]

    def _allocated(self, without: AbstractSet[str]) -> Settlement:
        constraints: list[Described] = []
        settlement = allocated(self._offer, without, constraints)
        for constraint in reversed(constraints):  # the outermost first
            self._words.setdefault(constraint.name, constraint.in_words)
        return settlement


def _nodes_of(trainer_id: str, assignment: Mapping[str, str]) -> set[str]:
    return {node for node, owner in assignment.items() if owner == trainer_id}
