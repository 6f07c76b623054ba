"""Counts in how many consecutive snapshots each node was idle.

Source: BFTrainer paper, section 2.1: nodes that are idle only between two jobs appear in one
record and are dropped. On Slurm one snapshot suffices, because a pilot waits behind every ordinary
job anyway.
"""

from __future__ import annotations

from collections.abc import Mapping

from bftrainer.model.cluster import NodeState, Snapshot

_IDLE = (NodeState.IDLE, NodeState.PLANNED)


def observe_idle(seen: Mapping[str, int], snapshot: Snapshot, enough: int) -> dict[str, int]:
    """Return the new counts, capped at ``enough``; an unknown node table changes nothing.

    Without the cap every idle node would change in every journalled decision.
    """
    if snapshot.nodes is None:
        return dict(seen)
    idle = (n.name for n in snapshot.nodes if n.state in _IDLE)
    return {name: min(seen.get(name, 0) + 1, enough) for name in idle}
