"""Snapshot and pilots → the pool: which nodes may be used, until when, and why not.

A node is *usable* when a pilot of ours holds it or has been requested for it, or
when it is a candidate: idle in enough snapshots, passed over by the scheduler, with
a gap long enough. Some candidates stay unborrowed as the reserve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from bftrainer.decide.types import Memory, PilotView, PoolNode, Settings
from bftrainer.poll.snapshot import Job, JobState, Node, NodeState, Reservation, Snapshot

FREE_STATES = (NodeState.IDLE, NodeState.PLANNED)
_NAME = attrgetter("name")
LOST_STATES = (NodeState.DRAINED, NodeState.DOWN, NodeState.RESERVED)  # of no use to anybody


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The usable nodes and the reasons for all others."""

    nodes: tuple[PoolNode, ...]
    reserve: tuple[str, ...]
    reserve_deficit: Mapping[str, int]  # node type -> nodes missing from the reserve
    not_used: Mapping[str, str]


def taken_nodes(snapshot: Snapshot) -> set[str]:
    """Return the nodes on which an ordinary job is.

    Nodes and jobs are not read in the same instant: a node seen free is free.
    """
    taken = {
        node
        for job in snapshot.jobs or ()
        if job.is_ordinary and job.state is not JobState.PENDING
        for node in job.nodes
    }
    if taken:
        taken -= {n.name for n in snapshot.nodes or () if n.state in FREE_STATES}
    return taken


def gap_ends(
    jobs: Sequence[Job], reservations: Sequence[Reservation], now_s: float
) -> dict[str, float]:
    """Return for each named node when the batch system plans to use it.

    Source: planned starts and nodes of pending ordinary jobs (Slurm: squeue %S and
    %Y) and reservations that are still to come.
    """
    ends: dict[str, float] = {}
    for job in jobs:
        if job.is_ordinary and job.state is JobState.PENDING and job.start_s is not None:
            for node in job.planned_nodes:
                ends[node] = min(ends.get(node, job.start_s), job.start_s)
    for reservation in reservations:
        if reservation.end_s > now_s:
            for node in reservation.nodes:
                ends[node] = min(ends.get(node, reservation.start_s), reservation.start_s)
    return ends


def build_pool(
    snapshot: Snapshot,
    pilots: Sequence[PilotView],
    memory: Memory,
    settings: Settings,
    now_s: float,
) -> Pool:
    """Sort every node of a complete snapshot into pool, reserve and not used."""
    nodes = snapshot.nodes or ()
    ends = gap_ends(snapshot.jobs or (), snapshot.reservations or (), now_s)
    by_node = {p.node: p for p in pilots}
    taken = taken_nodes(snapshot)
    told_of = by_node.keys() | ends.keys() | memory.held_off.keys()
    types, seen = settings.eligible_node_types, memory.idle_seen
    pool: list[PoolNode] = []
    candidates: list[PoolNode] = []
    not_used: dict[str, str] = {}
    for node in sorted(nodes, key=_NAME):
        name = node.name
        if (
            name not in told_of
            and node.state in FREE_STATES
            and (not types or node.node_type in types)
            and seen.get(name, 0) >= settings.idle_confirmations
        ):  # most nodes of most pools: nothing more has to be asked
            candidates.append(_candidate(name, node.node_type, node.gpus, None))
            continue
        pilot = by_node.get(name)
        end = ends.get(name)
        if pilot is not None:
            why = _why_not_keep(node, pilot, settings, now_s, is_taken=name in taken)
            # A plan that moves over a held pilot does not end it: what is planned is
            # served by give-back when it can start; the pilot's own limit is the gap.
            end = pilot.end_s if pilot.end_s is not None else end
        else:
            why = _why_not_take(node, end, memory, settings, now_s)
        if why:
            not_used[name] = why
        elif pilot is None:
            candidates.append(_candidate(name, node.node_type, node.gpus, end))
        else:
            pool.append(
                _with_pilot(name, node.node_type, node.gpus, end, pilot.pilot_id, pilot.is_held)
            )
    reserve, deficit = _split_reserve(candidates, pool, settings)
    for name in reserve:
        not_used[name] = "It is kept free for small and immediate jobs (reserve_nodes_per_type)."
    pool += [c for c in candidates if c.name not in reserve] if reserve else candidates
    pool.sort(key=_NAME)
    return Pool(nodes=tuple(pool), reserve=reserve, reserve_deficit=deficit, not_used=not_used)


# Mostly the same nodes, decision after decision: objects are made once.


@lru_cache(maxsize=1 << 16)
def _candidate(name: str, node_type: str, gpus: int, end_s: float | None) -> PoolNode:
    return PoolNode(name=name, node_type=node_type, gpus=gpus, usable_until_s=end_s)


@lru_cache(maxsize=1 << 16)
def _with_pilot(
    name: str,
    node_type: str,
    gpus: int,
    end_s: float | None,
    pilot_id: str,
    is_held: bool,
) -> PoolNode:
    return PoolNode(
        name=name,
        node_type=node_type,
        gpus=gpus,
        usable_until_s=end_s,
        pilot_id=pilot_id,
        is_held=is_held,
    )


def _why_not_keep(
    node: Node, pilot: PilotView, settings: Settings, now_s: float, *, is_taken: bool
) -> str:
    if pilot.is_leaving:
        return f"Pilot {pilot.pilot_id} is leaving it."
    if node.state in LOST_STATES:
        return f"It is {node.state.value}{_because(node)}."
    if is_taken and not pilot.is_held:
        return f"An ordinary job took it before pilot {pilot.pilot_id} could start."
    if pilot.end_s is not None and now_s >= pilot.end_s - settings.end_margin_s:
        return f"The time limit of pilot {pilot.pilot_id} is about to strike."
    return ""


def _why_not_take(
    node: Node, end: float | None, memory: Memory, settings: Settings, now_s: float
) -> str:
    if node.state not in FREE_STATES:
        return f"It is {node.state.value}{_because(node)}."
    if settings.eligible_node_types and node.node_type not in settings.eligible_node_types:
        return f"Policy does not use nodes of type {node.node_type}."
    if node.name in memory.held_off:
        return "It is left to the queue until a whole scheduler cycle has passed."
    if end is not None and end - now_s - settings.gap_margin_s < settings.min_gap_s:
        return f"The batch system plans to use it in {max(0.0, end - now_s):.0f} s."
    if memory.idle_seen.get(node.name, 0) < settings.idle_confirmations:
        return "It has not been idle in enough snapshots yet (idle_confirmations)."
    return ""


def _because(node: Node) -> str:
    return f" ({node.reason})" if node.reason else ""


def _split_reserve(
    candidates: Sequence[PoolNode], pool: Sequence[PoolNode], settings: Settings
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Choose the reserve per node type: last by name, so that it seldom moves."""
    reserve: list[str] = []
    deficit: dict[str, int] = {}
    wanted = settings.reserve_nodes_per_type
    if not wanted:
        return (), {}
    for node_type in sorted({n.node_type for n in (*candidates, *pool)}):
        free = [c.name for c in candidates if c.node_type == node_type]
        chosen = sorted(free)[-wanted:] if wanted else []
        reserve += chosen
        held = sum(1 for n in pool if n.node_type == node_type)
        if missing := min(wanted - len(chosen), held):
            deficit[node_type] = missing
    return tuple(reserve), deficit
