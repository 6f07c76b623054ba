"""Count in how many snapshots running a node has been idle.

Source: BFTrainer paper, section 2.1: nodes that are idle only between two jobs show
up in one record and are dropped. On Slurm one look suffices, because a pilot waits
its turn behind every ordinary job anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

from bftrainer.model.cluster import NodeState, Snapshot

_IDLE = (NodeState.IDLE, NodeState.PLANNED)


def observe_idle(seen: Mapping[str, int], snapshot: Snapshot, enough: int) -> dict[str, int]:
    """Return the new counts, up to ``enough``; an unknown node table changes nothing.

    A count that went on would be a change of every idle node in every decision's journal entry.
    """
    if snapshot.nodes is None:
        return dict(seen)
    idle = (n.name for n in snapshot.nodes if n.state in _IDLE)
    return {name: min(seen.get(name, 0) + 1, enough) for name in idle}
