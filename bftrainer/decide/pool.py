"""Snapshot and pilots → the pool: which nodes may be used, until when, and why not.

A node is *usable* when a pilot of ours holds it or has been requested for it, or
when it is a candidate: idle in enough snapshots, passed over by the scheduler, with
a gap long enough. Some candidates stay unborrowed as the reserve. A node is left when
what is planned on it (``gaps``) comes nearer than the margin.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

from bftrainer.decide import reserve as reserves
from bftrainer.decide.gaps import GapEnd, Then, gap_ends
from bftrainer.decide.inqueue import (
    cannot_start,
    claim_until_s,
    is_too_short,
    left_to_queue,
)
from bftrainer.decide.types import Memory, PilotView, PoolNode, Settings
from bftrainer.decide.waiting import starts_by_s
from bftrainer.poll.snapshot import JobState, Node, NodeState, Snapshot

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
    due: frozenset[str] = frozenset()  # nodes to leave now, because of what is planned on them


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


def build_pool(
    snapshot: Snapshot,
    pilots: Sequence[PilotView],
    memory: Memory,
    settings: Settings,
    now_s: float,
    spoken_for: AbstractSet[str] = frozenset(),
) -> Pool:
    """Sort every node of a complete snapshot into pool, reserve and not used.

    ``spoken_for``: nodes on which the main scheduler is about to start somebody.
    """
    nodes = snapshot.nodes or ()
    by_node = {p.node: p for p in pilots}
    ends = gap_ends(snapshot, now_s, settings.cycle_s, by_node.keys())
    starts_s = starts_by_s(snapshot, settings.cycle_s, now_s) if ends else now_s
    taken = taken_nodes(snapshot)
    told_of = by_node.keys() | ends.keys() | memory.held_off.keys()
    types, seen = settings.eligible_node_types, memory.idle_seen
    left = left_to_queue(memory, snapshot, settings, now_s, spoken_for)
    asked = replace(memory, held_off=left)
    pool, candidates = list[PoolNode](), list[PoolNode]()
    not_used, due = dict[str, str](), set[str]()
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
        pilot, end = by_node.get(name), ends.get(name)
        until_s = claim_until_s(end, snapshot, settings, now_s, starts_s)
        if pilot is None:
            why = _why_not_take(node, end, until_s, asked, settings, now_s, starts_s)
        elif planned := _why_due(node, pilot, end, snapshot, settings, now_s):
            why = planned
            due.add(name)
        else:
            why = _why_not_keep(node, pilot, settings, now_s, is_taken=name in taken)
            until_s = _keep_until_s(pilot, end, until_s, settings)
        if why:
            not_used[name] = why
        elif pilot is None:
            candidates.append(_candidate(name, node.node_type, node.gpus, until_s))
        else:
            kind = node.node_type, node.gpus
            pool.append(_with_pilot(name, *kind, until_s, pilot.pilot_id, pilot.is_held))
    wanted = _wanted_reserve(nodes, memory, settings, now_s)
    reserve, lacks = _split_reserve(candidates, pool, wanted, now_s)
    for name in reserve:
        not_used[name] = "It is kept free for small and immediate jobs (reserve_nodes_per_type)."
    pool += [c for c in candidates if c.name not in reserve] if reserve else candidates
    pool.sort(key=_NAME)
    going = frozenset(due)
    return Pool(
        nodes=tuple(pool), reserve=reserve, reserve_deficit=lacks, not_used=not_used, due=going
    )


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


def _why_due(
    node: Node,
    pilot: PilotView,
    end: GapEnd | None,
    snapshot: Snapshot,
    settings: Settings,
    now_s: float,
) -> str:
    """Why the pilot goes because of what is planned, also if it is about to end anyhow."""
    if end is None or end.then is Then.UNKNOWN:
        return ""  # what is planned there is mostly our own pilot
    if pilot.is_leaving or node.state in LOST_STATES:
        return ""
    if now_s >= end.at_s - settings.gap_margin_s:
        return end.sentence(now_s)
    if cannot_start(pilot, end, snapshot, settings):
        return "Its pilot waits with a time limit that has become too long."
    return ""


def _keep_until_s(
    pilot: PilotView, end: GapEnd | None, claim_until_s: float | None, settings: Settings
) -> float | None:
    """When a pilot must be off its node; of one that waits, when it would have to be."""
    if end is None or end.then is Then.UNKNOWN:
        return pilot.end_s
    if pilot.is_held or pilot.end_s is not None:
        return min(end.at_s - settings.gap_margin_s, pilot.end_s or math.inf)
    return claim_until_s


def _why_not_take(
    node: Node,
    end: GapEnd | None,
    until_s: float | None,
    memory: Memory,
    settings: Settings,
    now_s: float,
    starts_s: float,
) -> str:
    if node.state not in FREE_STATES:
        return f"It is {node.state.value}{_because(node)}."
    if settings.eligible_node_types and node.node_type not in settings.eligible_node_types:
        return f"Policy does not use nodes of type {node.node_type}."
    if node.name in memory.held_off:
        return "It is left to the queue until a whole scheduler cycle has passed."
    if end and until_s is not None and is_too_short(until_s, settings, now_s, starts_s):
        return end.sentence(now_s)
    if memory.idle_seen.get(node.name, 0) < settings.idle_confirmations:
        return "It has not been idle in enough snapshots yet (idle_confirmations)."
    return ""


def _because(node: Node) -> str:
    return f" ({node.reason})" if node.reason else ""


def _wanted_reserve(
    nodes: Sequence[Node], memory: Memory, settings: Settings, now_s: float
) -> Callable[[str], int] | None:
    """Return how many nodes of a type are to be in reserve; None: there is no reserve."""
    fixed = settings.reserve_nodes_per_type + settings.reserve_extra_nodes
    if not settings.learns_reserve:
        return (lambda _: fixed) if fixed else None
    counts = Counter(n.node_type for n in nodes)
    seen, extra = memory.small_jobs, settings.reserve_extra_nodes
    return lambda t: reserves.wanted(seen, t, counts[t], now_s) + extra


def _split_reserve(
    candidates: Sequence[PoolNode],
    pool: Sequence[PoolNode],
    wanted: Callable[[str], int] | None,
    now_s: float,
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Choose the reserve per node type, and count what it lacks."""
    reserve: list[str] = []
    deficit: dict[str, int] = {}
    if wanted is None:
        return (), {}
    for node_type in sorted({n.node_type for n in (*candidates, *pool)}):
        size = wanted(node_type)
        free = [c for c in candidates if c.node_type == node_type]
        chosen = reserves.choose(free, size, now_s)
        reserve += sorted(n.name for n in chosen)
        held = sum(1 for n in pool if n.node_type == node_type)
        if missing := min(size - len(chosen), held):
            deficit[node_type] = missing
    return tuple(reserve), deficit
