"""Sets of nodes as bits of an integer, cheap to combine.

A decision combines hundreds of such sets. Bit 0 is the first node by name, so the lowest bits
of a set are its first nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from operator import attrgetter, or_

from bftrainer.model.cluster import Node

NodeSet = int
LONG = 64  # shortest list of names whose set is cached
MOST_CACHED = 4096  # such sets
_NAME = attrgetter("name")
_KIND = attrgetter("partitions", "features", "cpus", "memory_mb", "gpus", "node_type")


@dataclass(frozen=True, slots=True)
class NodeSets:
    """All nodes, grouped by kind: nodes of a kind differ in name and state only."""

    nodes: tuple[Node, ...]
    bit_of: dict[str, NodeSet]
    kinds: tuple[tuple[Node, NodeSet], ...]  # one node of the kind, and the set of all
    _cached_sets: dict[tuple[str, ...], NodeSet] = field(compare=False)  # of long lists

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> NodeSets:
        """Number the nodes."""
        by_name = tuple(sorted(nodes, key=_NAME))
        positions_of: dict[object, list[int]] = {}
        for position, kind in enumerate(map(_KIND, by_name)):
            positions_of.setdefault(kind, []).append(position)
        kinds = [
            (by_name[alike[0]], _from_positions(alike, len(by_name)))
            for alike in positions_of.values()
        ]
        bit_of, cached_sets = _numbered(tuple(map(_NAME, by_name)))
        return cls(by_name, bit_of, tuple(kinds), cached_sets)

    def named(self, names: Iterable[str]) -> NodeSet:
        """Return the known nodes among the names; long lists recur, so their sets are cached."""
        if not isinstance(names, tuple) or len(names) < LONG:
            return reduce(or_, [self.bit_of.get(name, 0) for name in names], 0)
        node_set = self._cached_sets.get(names)
        if node_set is None:
            node_set = self.named(list(names))
            if len(self._cached_sets) >= MOST_CACHED:
                self._cached_sets.clear()
            self._cached_sets[names] = node_set
        return node_set

    def where(self, is_met_by: Callable[[Node], bool]) -> NodeSet:
        """Return the nodes of the kinds that satisfy a predicate, asked once per kind."""
        matching: NodeSet = 0
        for node, members in self.kinds:
            if is_met_by(node):
                matching |= members
        return matching

    def members(self, node_set: NodeSet) -> Iterator[Node]:
        """Iterate over a set in order of name."""
        return (self.nodes[position] for position in positions(node_set))

    def names(self, node_set: NodeSet) -> list[str]:
        """Return the names of a set, in order."""
        return [node.name for node in self.members(node_set)]


@lru_cache(maxsize=2)  # the same nodes from look to look, and mostly the same lists of them
def _numbered(names: tuple[str, ...]) -> tuple[dict[str, NodeSet], dict[tuple[str, ...], NodeSet]]:
    """Return each node's bit, and where to keep the sets of long lists."""
    return {name: 1 << position for position, name in enumerate(names)}, {}


def positions(node_set: NodeSet) -> Iterator[int]:
    """Iterate over the bits of a set, the lowest first."""
    while node_set:
        lowest = node_set & -node_set
        yield lowest.bit_length() - 1
        node_set ^= lowest


def first(node_set: NodeSet, count: int) -> NodeSet:
    """Return the first ``count`` nodes of a set, or all of a smaller one."""
    if node_set.bit_count() <= count:
        return node_set
    if not count:
        return 0
    low, high = 0, node_set.bit_length()  # bits: too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        if (node_set & ((1 << middle) - 1)).bit_count() < count:
            low = middle
        else:
            high = middle
    return node_set & ((1 << high) - 1)


def _from_positions(positions: Sequence[int], length: int) -> NodeSet:
    """Set many bits at once: setting one costs the length of the integer."""
    bits = bytearray(length // 8 + 1)
    for position in positions:
        bits[position >> 3] |= 1 << (position & 7)
    return int.from_bytes(bits, "little")
