"""Count in how many snapshots running a node has been idle.

Source: BFTrainer paper, section 2.1: nodes that are idle only between two jobs show
up in one record and are dropped. On Slurm one look suffices, because a pilot waits
its turn behind every ordinary job anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

from bftrainer.poll.snapshot import NodeState, Snapshot

_IDLE = (NodeState.IDLE, NodeState.PLANNED)


def observe_idle(seen: Mapping[str, int], snapshot: Snapshot) -> dict[str, int]:
    """Return the new counts; an unknown node table changes nothing."""
    if snapshot.nodes is None:
        return dict(seen)
    return {n.name: seen.get(n.name, 0) + 1 for n in snapshot.nodes if n.state in _IDLE}
