"""The simulated batch system: a trace's idle nodes as ordinary snapshots."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from bftrainer.model.cluster import Node, NodeState, Snapshot
from bftrainer.model.node_request import gpus_of_type


class World:
    """The nodes that are idle now, and our pilots on them."""

    def __init__(self, names: Sequence[str], node_types: Sequence[str] | None = None) -> None:
        self._free = {n: Node(name=n, state=NodeState.IDLE) for n in names}
        for name, node_type in zip(names, node_types or (), strict=bool(node_types)):
            self._free[name] = replace(
                self._free[name], node_type=node_type, gpus=gpus_of_type(node_type)
            )
        self._ours = {n: replace(one, state=NodeState.ALLOCATED) for n, one in self._free.items()}
        self._idle: list[str] = []  # sorted
        self._unseen: dict[str, None] = {}

    def join(self, names: Iterable[str]) -> None:
        """Nodes have become idle; they are not seen yet."""
        self._unseen.update(dict.fromkeys(names))

    def leave(self, names: Iterable[str]) -> None:
        """Nodes are taken back. That shows at once: agents tell when they have to go."""
        for name in names:
            if name in self._unseen:
                del self._unseen[name]
            else:
                del self._idle[bisect_left(self._idle, name)]

    def look(self) -> None:
        """See what has become idle."""
        for name in self._unseen:
            insort(self._idle, name)
        self._unseen.clear()

    @property
    def n_idle(self) -> int:
        """The number of nodes that are idle or ours, seen or not."""
        return len(self._idle) + len(self._unseen)

    def snapshot(self, now_s: float, held: Collection[str]) -> Snapshot:
        """Return what the last look has shown; nodes that jobs use are left out."""
        free, ours = self._free, self._ours
        if held:
            nodes = tuple([(ours if name in held else free)[name] for name in self._idle])
        else:
            nodes = tuple(map(free.__getitem__, self._idle))
        return Snapshot(taken_at_s=now_s, nodes=nodes, jobs=())
