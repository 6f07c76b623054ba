"""Nodes that jobs share: what is left of each, and where one more job finds room.

A room is one of some nodes and what is left of it: a node in use, or one that a job of this
decision is about to start on. Used by ``feasible``. A search goes on where the last one for the
same part ended, because rooms only get smaller.
"""

from __future__ import annotations

from bftrainer.model.cluster import NodeLeft, NodeState
from bftrainer.queue.model import NodeDemand
from bftrainer.queue.nodesets import NodeSet, NodeSets


class Rooms:
    """All rooms there are."""

    def __init__(self, sets: NodeSets, usable: NodeSet) -> None:
        """Begin with nodes in use of which something is left; pilots have theirs whole."""
        self._sets = sets
        self._rooms: list[tuple[NodeSet, NodeLeft] | None] = [  # None: it has changed, see below
            (sets.bit_of[node.name], node.left)
            for node in sets.nodes
            if node.left is not None
            and node.state is NodeState.ALLOCATED
            and not sets.bit_of[node.name] & usable
        ]
        self._searched: dict[tuple[NodeSet, NodeLeft], int] = {}

    def find(self, demand: NodeDemand, share: NodeLeft) -> list[int]:
        """Return rooms for a demand, as many as it asks for if there are."""
        key, found = (demand.among, share), list[int]()
        for position in range(self._searched.get(key, 0), len(self._rooms)):
            if len(found) == demand.count:
                break
            room = self._rooms[position]
            if room is not None and not room[0] & ~demand.among and room[1].covers(share):
                found.append(position)
            elif not found:
                self._searched[key] = position + 1
        return found

    def use(self, position: int, share: NodeLeft) -> None:
        """Take a part of a room."""
        room = self._rooms[position]
        if room is not None:
            self._rooms[position] = None
            self._add(room[0], room[1].without(share))

    def begin(self, demand: NodeDemand, share: NodeLeft) -> None:
        """Leave to others what a job does not need of whole nodes it starts on."""
        kinds = [node for node, members in self._sets.kinds if members & demand.among]
        smallest = NodeLeft(
            cpus=min(node.cpus for node in kinds),
            memory_mb=min(node.memory_mb for node in kinds),
            gpus=min(node.gpus for node in kinds),
        )
        for _ in range(demand.count):
            self._add(demand.among, smallest.without(share))

    def _add(self, among: NodeSet, left: NodeLeft) -> None:
        if left.cpus > 0:
            self._rooms.append((among, left))
