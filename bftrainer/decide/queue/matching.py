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
        n_unused = self.unused.bit_count()
        for demand in demands:
            n_unused -= demand.count
        if n_unused < 0:
            return False
        unused, has = self.unused, dict(self.has)
        for demand in demands:
            if self.add_up_to(demand.among, demand.count) < demand.count:
                self.unused, self.has = unused, has
                return False
        return True

    def add_up_to(self, among: NodeSet, count: int) -> int:
        """Match up to ``count`` nodes of the set; return how many were found."""
        self.has.setdefault(among, 0)
        matched = 0
        while matched < count:
            newly_matched = self._take(among, count - matched)
            if not newly_matched:
                break
            matched += newly_matched
        return matched

    def reachable(self, askers: Iterable[NodeSet]) -> NodeSet:
        """Return the nodes that would help one of these demands, directly or by moving others."""
        asking = list(askers)
        unvisited = dict(self.has)
        for asker in asking:
            unvisited.pop(asker, None)
        nodes_reached = 0
        for asker in asking:
            nodes_reached |= asker
            for demand in [demand for demand, nodes in unvisited.items() if asker & nodes]:
                asking.append(demand)
                del unvisited[demand]
        return nodes_reached

    def _take(self, among: NodeSet, max_nodes: int) -> int:
        """Take unused nodes, or nodes of others that can move to unused ones: a shortest path."""
        if not self.unused:
            return 0
        before: dict[NodeSet, NodeSet | None] = {among: None}  # demand -> the asking demand
        asking = [among]
        unvisited: dict[NodeSet, NodeSet] | None = None  # demand -> its nodes
        for asker in asking:
            if reachable := asker & self.unused:
                return self._shift(asker, before, first(reachable, max_nodes))
            if unvisited is None:
                unvisited = dict(self.has)
                del unvisited[among]
            for demand in [demand for demand, nodes in unvisited.items() if asker & nodes]:
                before[demand] = asker
                asking.append(demand)
                del unvisited[demand]
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
        for position, member in enumerate(chain):
            passed_on = 0
            if position + 1 < len(chain):
                passed_on = first(self.has[member] & chain[position + 1], amount)
            self.has[member] = (self.has[member] & ~passed_on) | gained
            gained = passed_on
        return amount
