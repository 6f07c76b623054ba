"""Nodes that jobs share: what is left of each, and where one more job fits.

A room is what is left of one node out of a set: a node in use, or one on which a job of this
decision is about to start. Used by ``feasible``. A search for a known share resumes where the
last one ended, because rooms only get smaller.
"""

from __future__ import annotations

from bftrainer.batch.queue.model import NodeDemand
from bftrainer.batch.queue.nodesets import NodeSet, NodeSets
from bftrainer.model.cluster import NodeLeft, NodeState


class Rooms:
    """All rooms."""

    def __init__(self, sets: NodeSets, usable: NodeSet) -> None:
        """Begin with partly used nodes; nodes of pilots count as whole."""
        self._sets = sets
        self._rooms: list[tuple[NodeSet, NodeLeft] | None] = [  # None: replaced by a smaller one
            (sets.bit_of[node.name], node.left)
            for node in sets.nodes
            if node.left is not None
            and node.state is NodeState.ALLOCATED
            and not sets.bit_of[node.name] & usable
        ]
        self._searched: dict[tuple[NodeSet, NodeLeft], int] = {}

    def find(self, demand: NodeDemand, share: NodeLeft) -> list[int]:
        """Return the positions of up to ``demand.count`` rooms for a demand."""
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
        """Take part of a room."""
        room = self._rooms[position]
        if room is not None:
            self._rooms[position] = None
            self._add(room[0], room[1].without(share))

    def begin(self, demand: NodeDemand, share: NodeLeft) -> None:
        """Add as rooms what a job leaves of the whole nodes it starts on."""
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
