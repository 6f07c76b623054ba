"""Nodes that wait for another node, or for another user's pilot to leave. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from bftrainer.decide import slow_nodes
from bftrainer.decide.constraints import swaps
from bftrainer.decide.constraints.chain import Constraint
from bftrainer.decide.constraints.offer import AskOffer, Offer, Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedSwaps(Constraint[Offer, Settlement]):
    """A node under a pilot of another user comes when that pilot has left."""

    owners: swaps.Owners
    name: ClassVar[str] = "awaited-swaps"
    in_words: ClassVar[str] = "pilots of other users that have to leave first (run_as)"

    def answer(self, offer: Offer, ask: AskOffer) -> Settlement:
        """Take such nodes out of the assignment, and note them as swaps."""
        answer = ask(offer)
        coming = swaps.under_way(answer.memory, offer.pool, offer.given.now_s).values()
        assignment, swapped = swaps.split(
            answer.assignment, self.owners, answer.memory.assignment, coming
        )
        return replace(answer, assignment=assignment, swaps=swapped)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedReplacements(Constraint[Offer, Settlement]):
    """A straggler stays a member until the node that replaces it trains."""

    name: ClassVar[str] = "awaited-replacements"
    in_words: ClassVar[str] = "the stay of slow nodes until others train in their place"

    def answer(self, offer: Offer, ask: AskOffer) -> Settlement:
        """Offer such stragglers to nobody, and note which nodes they wait for."""
        in_pool = {node.name for node in offer.pool.nodes}
        memory = slow_nodes.settle(offer.memory, in_pool, offer.given)
        answer = ask(replace(offer, memory=memory, names=offer.names - memory.replacing.keys()))
        memory = answer.memory
        replacing = slow_nodes.replaced(memory, answer.assignment, offer.given)
        return replace(answer, memory=replace(memory, replacing=replacing))
