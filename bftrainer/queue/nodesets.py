"""The nodes of a look as bits of an integer: sets of nodes that are cheap to combine.

Takes the nodes of a snapshot, returns ``NodeSets``; hundreds of such sets are combined within a
decision. Bit 0 is the first node by name, so that the lowest bits of a set are its first nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import attrgetter, or_

from bftrainer.model.cluster import Node
from bftrainer.queue.shown import once_per_look

NodeSet = int
LONG = 64  # names in a list of which the set is kept
_NAME = attrgetter("name")
_KIND = attrgetter("partitions", "features", "cpus", "memory_mb", "gpus")


@dataclass(frozen=True, slots=True)
class NodeSets:
    """All nodes, and which of them are of one kind: they differ in name and state only."""

    nodes: tuple[Node, ...]
    bit_of: dict[str, NodeSet]
    kinds: tuple[tuple[Node, NodeSet], ...]  # any node of the kind, and all of them
    _named: dict[tuple[str, ...], NodeSet] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> NodeSets:
        """Number the nodes."""
        ordered = tuple(sorted(nodes, key=_NAME))
        bit_of: dict[str, NodeSet] = {}
        kinds: dict[object, list[int]] = {}
        for position, node in enumerate(ordered):
            bit_of[node.name] = 1 << position
            kinds.setdefault(_KIND(node), []).append(position)
        return cls(
            ordered,
            bit_of,
            tuple(
                (ordered[some[0]], _from_positions(some, len(ordered))) for some in kinds.values()
            ),
        )

    def named(self, names: Iterable[str]) -> NodeSet:
        """Return those of the names that are nodes here; long lists are said again and again."""
        if not isinstance(names, tuple) or len(names) < LONG:
            return reduce(or_, [self.bit_of.get(name, 0) for name in names], 0)
        if names not in self._named:
            self._named[names] = self.named(list(names))
        return self._named[names]

    def where(self, is_one: Callable[[Node], bool]) -> NodeSet:
        """Return the nodes of the kinds that are wanted; asks once per kind."""
        found = 0
        for node, members in self.kinds:
            if is_one(node):
                found |= members
        return found

    def members(self, some: NodeSet) -> Iterator[Node]:
        """Go through a set in order of name."""
        return (self.nodes[position] for position in positions(some))


@once_per_look
def sets_of(nodes: tuple[Node, ...]) -> NodeSets:
    """Number the nodes of a look."""
    return NodeSets.of(nodes)


def positions(some: NodeSet) -> Iterator[int]:
    """Go through the bits of a set, the lowest first."""
    while some:
        lowest = some & -some
        yield lowest.bit_length() - 1
        some ^= lowest


def first(some: NodeSet, count: int) -> NodeSet:
    """Return the first ``count`` nodes of a set, or all of a smaller one."""
    if some.bit_count() <= count:
        return some
    found = 0
    for _ in range(count):
        lowest = some & -some
        found |= lowest
        some ^= lowest
    return found


def _from_positions(positions: Sequence[int], length: int) -> NodeSet:
    """Set many bits at once: one by one costs the length of the number each time."""
    bits = bytearray(length // 8 + 1)
    for position in positions:
        bits[position >> 3] |= 1 << (position & 7)
    return int.from_bytes(bits, "little")
