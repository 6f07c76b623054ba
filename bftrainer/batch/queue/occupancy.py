"""Nodes by state in a snapshot, and ordinary jobs that run or wait. Pure.

Several decisions use one snapshot; what depends on it alone is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import wraps
from typing import TypeVar

from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot

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


@once_per_look
def pending_jobs(snapshot: Snapshot) -> Sequence[Job]:
    """Return the ordinary jobs that have not started, in snapshot order."""
    pending = JobState.PENDING  # looked up once: a queue may have 10,000 jobs
    return [j for j in snapshot.jobs or () if j.state is pending and j.pilot_id is None]


def why_it_waits(job: Job, now_s: float) -> str:
    """Say why a job cannot start now whatever is free; "": no reason known."""
    if not job.is_entitled:
        what = f" ({job.waits_for})" if job.waits_for else ""
        return f"The batch system does not start it: {job.reason or 'it does not say why'}{what}."
    if job.begin_s is not None and job.begin_s > now_s:
        return "Its begin time has not come."
    return ""


@once_per_look
def waits_for_nodes(snapshot: Snapshot) -> bool:
    """Return whether some pending job might start if it had nodes."""
    return any(not why_it_waits(job, snapshot.taken_at_s) for job in pending_jobs(snapshot))
