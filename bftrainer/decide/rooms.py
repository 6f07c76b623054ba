"""Nodes that jobs share: what is left of each, and where one more job finds room.

Takes nodes in use and nodes that jobs of this decision are about to start on, returns
rooms for jobs that need only a part of a node; used by ``feasible``. A search goes on
where the last one for the same need ended, because rooms only get smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bftrainer.decide.matching import Demand
from bftrainer.decide.nodesets import NodeSet
from bftrainer.decide.requests import Need, Site
from bftrainer.poll.snapshot import NodeState


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What is left of one node."""

    among: NodeSet  # it is one of these
    left: Need


@dataclass(slots=True)
class Rooms:
    """All rooms there are."""

    rooms: list[Room | None] = field(default_factory=list)  # None: it has changed, see below
    searched: dict[tuple[NodeSet, Need], int] = field(default_factory=dict)

    @classmethod
    def in_use(cls, site: Site) -> Rooms:
        """Find nodes in use of which something is left; pilots have theirs whole."""
        return cls(
            [
                Room(
                    site.sets.bit_of[node.name],
                    Need(node.left.cpus, node.left.memory_mb, node.left.gpus),
                )
                for node in site.sets.nodes
                if node.left is not None
                and node.state is NodeState.ALLOCATED
                and not site.sets.bit_of[node.name] & site.usable
            ]
        )

    def find(self, demand: Demand, need: Need) -> list[int]:
        """Return rooms for a demand, as many as it asks for if there are."""
        key = (demand.among, need)
        found: list[int] = []
        position = self.searched.get(key, 0)
        while position < len(self.rooms) and len(found) < demand.count:
            room = self.rooms[position]
            if room is not None and not room.among & ~demand.among and room.left.covers(need):
                found.append(position)
            elif not found:
                self.searched[key] = position + 1
            position += 1
        return found

    def use(self, positions: Iterable[int], need: Need) -> None:
        """Take what a job needs of these rooms."""
        for position in positions:
            room = self.rooms[position]
            if room is not None:
                self.rooms[position] = None
                self._add(Room(room.among, room.left.less(need)))

    def begin(self, site: Site, demand: Demand, need: Need) -> None:
        """Leave to others what a job does not need of whole nodes it starts on."""
        kinds = [node for node, members in site.sets.kinds if members & demand.among]
        smallest = Need(
            min(node.cpus for node in kinds),
            min(node.memory_mb for node in kinds),
            min(node.gpus for node in kinds),
        )
        for _ in range(demand.count):
            self._add(Room(demand.among, smallest.less(need)))

    def _add(self, room: Room) -> None:
        if room.left.cpus > 0:
            self.rooms.append(room)
