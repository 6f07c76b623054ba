"""Nodes that a trainer keeps or gets before the policy is asked, and nodes that nobody gets. Pure.

Whose turn it is follows from ``decide.turns``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from bftrainer.decide import turns
from bftrainer.decide.constraints.caps import of_groups
from bftrainer.decide.constraints.chain import Constraint
from bftrainer.decide.constraints.offer import AskOffer, Offer, Settlement
from bftrainer.model.assignments import nodes_by_trainer
from bftrainer.model.parts import smallest_lending_host


@dataclass(frozen=True, slots=True, kw_only=True)
class CoolingNodes(Constraint[Offer, Settlement]):
    """Nodes on which workers failed go to nobody for a while."""

    name: ClassVar[str] = "cooling-nodes"
    in_words: ClassVar[str] = "the cooling of nodes after failures (bftrainer nodes)"

    def answer(self, offer: Offer, ask: AskOffer) -> Settlement:
        """Ask for the other nodes."""
        return ask(replace(offer, names=offer.names - offer.given.cooling.keys()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleBudgets(Constraint[Offer, Settlement]):
    """A trainer whose rescales are used up keeps the nodes that it has, and gets no others.

    One that would fall below its n_min is allocated like any other, and so are those under a limit
    that is exceeded.
    """

    name: ClassVar[str] = "rescale-budget"
    in_words: ClassVar[str] = "budgets of rescales that are used up (rescale_budget)"

    def answer(self, offer: Offer, ask: AskOffer) -> Settlement:
        """Ask with its nodes kept."""
        return ask(replace(offer, kept_nodes={**offer.kept_nodes, **self._settled(offer)}))

    def _settled(self, offer: Offer) -> dict[str, str]:
        given = offer.given
        held_nodes = nodes_by_trainer(offer.memory.assignment, offer.names)
        over_a_limit = _over_a_limit(offer, held_nodes)
        settled_nodes: dict[str, str] = {}
        for record in given.trainers:
            trainer_id = record.trainer_id
            nodes = held_nodes.get(trainer_id, ())
            is_settled = given.now_s < given.settled_until_s.get(trainer_id, 0.0)
            if is_settled and record.spec.has_size(len(nodes)) and trainer_id not in over_a_limit:
                settled_nodes.update(dict.fromkeys(nodes, trainer_id))
        return settled_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns(Constraint[Offer, Settlement]):
    """A trainer that has waited too long has a turn: it keeps its nodes, or gets its n_min."""

    name: ClassVar[str] = "turns"
    in_words: ClassVar[str] = "turns of trainers that had waited too long (max_wait_s)"

    def answer(self, offer: Offer, ask: AskOffer) -> Settlement:
        """Ask with the nodes of their turns given away."""
        return ask(replace(offer, kept_nodes={**offer.kept_nodes, **self._turn_nodes(offer)}))

    def _turn_nodes(self, offer: Offer) -> dict[str, str]:
        turn_nodes: dict[str, str] = {}
        held_nodes = nodes_by_trainer(offer.memory.assignment, offer.names)
        specs = {record.trainer_id: record.spec for record in offer.given.trainers}
        for trainer_id in turns.in_turn(offer.memory, offer.given):
            its_nodes = held_nodes.get(trainer_id, ())
            assigned_nodes = {*offer.kept_nodes, *turn_nodes}
            if trainer_id in offer.kept_nodes.values():
                continue
            if specs[trainer_id].has_size(len(its_nodes)) and assigned_nodes.isdisjoint(its_nodes):
                turn_nodes.update(dict.fromkeys(its_nodes, trainer_id))
            elif problem := replace(offer, kept_nodes={}).problem():
                turn_nodes |= turns.given_to(trainer_id, problem, assigned_nodes)
        return turn_nodes


def _over_a_limit(offer: Offer, held_nodes: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the trainers whose user or account has more nodes than its limit allows."""
    over_a_limit: set[str] = set()
    given = offer.given
    host_gpus = smallest_lending_host(given.snapshot.nodes or ())
    for cap in of_groups(given.trainers, given.settings.limits, {}, host_gpus):
        n_held = 0
        for trainer_id in cap.trainers:
            n_held += len(held_nodes.get(trainer_id, ()))
        if n_held > cap.most:
            over_a_limit.update(cap.trainers)
    return over_a_limit
