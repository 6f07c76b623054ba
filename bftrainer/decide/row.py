"""The nodes in the scheduler's own order, in which neighbours are neighbours.

``NodeSets`` has them by name, as people look for them; Slurm chooses along the order of its
configuration, which is the look's. Used by ``next_plan``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from bftrainer.decide.nodesets import NodeSet, NodeSets, first, positions, union
from bftrainer.poll.snapshot import Node, NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The nodes of a look; bit 0 of a set is the first."""

    nodes: Sequence[Node]
    bit_of: dict[str, NodeSet]
    clearing: NodeSet  # their job has ended, free in a moment
    known: dict[NodeSet, NodeSet] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Row:
        """Number the nodes as they come."""
        bit_of = {node.name: 1 << n for n, node in enumerate(nodes)}
        clearing = sum(bit_of[n.name] for n in nodes if n.state is NodeState.COMPLETING)
        return cls(nodes=nodes, bit_of=bit_of, clearing=clearing)

    def named(self, names: Iterable[str]) -> NodeSet:
        """Return those of the names that are nodes here."""
        return union(self.bit_of, names)

    def of_set(self, some: NodeSet, sets: NodeSets) -> NodeSet:
        """Return a set of ``sets`` in this order."""
        if some not in self.known:
            self.known[some] = self.named(node.name for node in sets.members(some))
        return self.known[some]

    def names(self, some: NodeSet) -> tuple[str, ...]:
        """Return the names of a set, in order."""
        return tuple(self.nodes[position].name for position in positions(some))


def neighbours(some: NodeSet, count: int) -> NodeSet:
    """Choose among these nodes as Slurm does on a cluster without a topology.

    Of the shortest row of neighbours that is long enough; while there is none, all of the longest.

    Args:
        some: at least ``count`` nodes.
        count: how many.
    """
    chosen = 0
    rows = sorted(_rows(some), key=itemgetter(1), reverse=True)  # of equals the first one first
    for n, (row, length) in enumerate(rows):
        if length >= count:
            enough = [other for other in rows[n:] if other[1] >= count]
            return chosen | first(min(enough, key=itemgetter(1))[0], count)
        chosen |= row
        count -= length
    return chosen


def _rows(some: NodeSet) -> list[tuple[NodeSet, int]]:
    rows = []
    while some:
        row = some & ~(some + (some & -some))
        rows.append((row, row.bit_count()))
        some ^= row
    return rows
