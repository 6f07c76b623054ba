"""Assigns nodes to demands one after the other, and moves earlier ones where that makes room. Pure.

``decide.feasible`` uses it to find which jobs can start, ``decide.victims`` to find the fewest
nodes. A matched node stays matched whatever is added later, so nodes offered first are used as far
as possible.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bftrainer.model.node_sets import NodeSet, first
from bftrainer.model.queue import NodeDemand


@dataclass(slots=True)
class Matching:
    """The nodes assigned to each demand; demands for the same set are merged."""

    unused: NodeSet  # offered, not matched
    has: dict[NodeSet, NodeSet] = field(default_factory=dict)

    def offer(self, more: NodeSet) -> None:
        """Add nodes."""
        self.unused |= more

    def try_add(self, demands: Sequence[NodeDemand]) -> bool:
        """Meet all these demands, or change nothing."""
        if sum(demand.count for demand in demands) > self.unused.bit_count():
            return False
        unused, has = self.unused, dict(self.has)
        if all(self.add_up_to(demand.among, demand.count) == demand.count for demand in demands):
            return True
        self.unused, self.has = unused, has
        return False

    def add_up_to(self, among: NodeSet, count: int) -> int:
        """Match up to ``count`` nodes of the set; return how many were found."""
        self.has.setdefault(among, 0)
        got = 0
        while got < count:
            taken = self._take(among, count - got)
            if not taken:
                break
            got += taken
        return got

    def reachable(self, askers: Iterable[NodeSet]) -> NodeSet:
        """Return the nodes that would help one of these demands, directly or by moving others."""
        asking = list(askers)
        asked = set(asking)
        others = [(other, nodes) for other, nodes in self.has.items() if other not in asked]
        found = 0
        for asker in asking:
            found |= asker
            asking += [other for other, nodes in others if asker & nodes]
            others = [(other, nodes) for other, nodes in others if not asker & nodes]
        return found

    def _take(self, among: NodeSet, most: int) -> int:
        """Take unused nodes, or nodes of others that can move to unused ones: a shortest path."""
        if not self.unused:
            return 0
        before: dict[NodeSet, NodeSet | None] = {among: None}  # demand -> the asking demand
        asking = [among]
        others: list[tuple[NodeSet, NodeSet]] | None = None  # demand, nodes
        for asker in asking:
            if reachable := asker & self.unused:
                return self._shift(asker, before, first(reachable, most))
            if others is None:
                others = [(other, nodes) for other, nodes in self.has.items() if other != among]
            for other, nodes in others:
                if asker & nodes:
                    before[other] = asker
                    asking.append(other)
            others = [(other, nodes) for other, nodes in others if other not in before]
        return 0

    def _shift(self, last: NodeSet, before: dict[NodeSet, NodeSet | None], gained: NodeSet) -> int:
        """``last`` gains unused nodes and passes on as many of its own, and so on up the tree."""
        chain = [last]
        while (asker := before[chain[-1]]) is not None:
            chain.append(asker)
        amount = gained.bit_count()
        for giver, asker in itertools.pairwise(chain):
            amount = min(amount, (self.has[giver] & asker).bit_count())
        gained = first(gained, amount)
        self.unused &= ~gained
        for position, who in enumerate(chain):
            given = 0
            if position + 1 < len(chain):
                given = first(self.has[who] & chain[position + 1], amount)
            self.has[who] = (self.has[who] & ~given) | gained
            gained = given
        return amount
