"""What a snapshot shows: the nodes by state, and those occupied by ordinary jobs.

Several decisions use one snapshot; what depends on it alone is computed once. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import wraps
from typing import TypeVar

from bftrainer.model.cluster import JobState, Node, NodeState, Snapshot

FREE_STATES = (NodeState.IDLE, NodeState.PLANNED)
LOST_STATES = (  # not usable
    *(NodeState.DRAINED, NodeState.DOWN, NodeState.RESERVED),
    NodeState.POWER_SAVING,
)
Given = TypeVar("Given")
Found = TypeVar("Found")


def once_per_look(work: Callable[[Given], Found]) -> Callable[[Given], Found]:
    """Cache the result of a pure function for its last argument; callers must not modify it."""
    last: tuple[Given, Found] | None = None

    @wraps(work)
    def known(given: Given) -> Found:
        nonlocal last
        kept = last
        if kept is None or kept[0] is not given:
            last = kept = given, work(given)
        return kept[1]

    return known


@once_per_look
def nodes_by_name(nodes: tuple[Node, ...]) -> Mapping[str, Node]:
    """Return the nodes by name."""
    return {node.name: node for node in nodes}


@once_per_look
def names_by_state(nodes: tuple[Node, ...]) -> Mapping[NodeState, AbstractSet[str]]:
    """Return the names of the nodes in each state."""
    found: dict[NodeState, set[str]] = {}
    for node in nodes:
        found.setdefault(node.state, set()).add(node.name)
    return found


def names_in(snapshot: Snapshot, *states: NodeState) -> set[str]:
    """Return the names of the nodes in any of these states."""
    by_state = names_by_state(snapshot.nodes or ())
    return set[str]().union(*[by_state.get(state, ()) for state in states])


@once_per_look
def pilots_by_node(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the pilots that have nodes, ours and those of other daemons."""
    pending = JobState.PENDING
    pilots = [(j.pilot_id, j.nodes) for j in snapshot.jobs or () if j.state is not pending]
    return {node: pilot for pilot, nodes in pilots if pilot is not None for node in nodes}


@once_per_look
def taken_nodes(snapshot: Snapshot) -> AbstractSet[str]:
    """Return the nodes occupied by ordinary jobs.

    Nodes and jobs are not read at the same instant: a node shown free counts as free.
    """
    pending = JobState.PENDING
    running = [j for j in snapshot.jobs or () if j.state is not pending and j.pilot_id is None]
    taken = {node for job in running for node in job.nodes}
    return taken - names_in(snapshot, *FREE_STATES)
