"""Limits the number of nodes in use: bounds of the policy, back-off, the reserve. Pure.

``max_held_nodes`` is set by ``bftrainer.daemon.harm.backoff``; other limits are on all nodes, or on
those of a partition or type. Nodes without a pilot leave the pool first, shortest gap first; then
pilots are released, the cheapest for the trainers first.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from bftrainer.decide import giveback_parts
from bftrainer.decide.borrowers import reserve_taken
from bftrainer.decide.draft import Draft
from bftrainer.decide.end_cost import leave_to_jobs
from bftrainer.decide.pool import build_pool, gap_end, wake_at_s
from bftrainer.decide.victims import cheapest
from bftrainer.model.decision import PilotView, PoolNode, Release, Settings
from bftrainer.model.fairness import limit_of
from bftrainer.model.parts import share_of_host
from bftrainer.model.queue import earliest

BACKS_OFF: Final = "bftrainer backs off"  # begins the reason
LEAST_SHARE: Final = 1e-9  # of a node; less is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """At most so many of some nodes."""

    bound: float
    reason: str
    among: AbstractSet[str] | None = None  # names; None: all
    is_of_pilots: bool = False  # each counts as one, whatever part of a node it has


def limit_nodes(draft: Draft) -> Draft:
    """Remove the excess nodes from the pool, and release the pilots among them."""
    for limit in _limits(draft):
        draft = _within(draft, limit)
    return draft


def _within(draft: Draft, limit: _Limit) -> Draft:
    pool, trains = draft.pool, draft.given.training
    free_nodes: list[PoolNode] = []
    our_nodes: list[PoolNode] = []
    for node in pool.nodes:
        if limit.among is not None and node.name not in limit.among:
            continue
        if node.pilot_id:
            our_nodes.append(node)
        else:
            free_nodes.append(node)
    free_nodes.sort(
        key=lambda n: (
            n.name not in trains,  # without pilots (simulator) trainers are on free nodes
            n.usable_until_s is not None,
            -(n.usable_until_s or 0.0),
            n.name,
        ),
        reverse=True,
    )
    count = _n_too_many(draft, limit, free_nodes, our_nodes)
    if count <= 0:
        return draft
    del free_nodes[count:]
    released_nodes = [release.node for release in draft.releases]
    too_many = cheapest(
        count - len(free_nodes), our_nodes, draft.pick, draft.memory.assignment, released_nodes
    )
    why = {node.name: limit.reason for node in (*free_nodes, *too_many)}
    releases = [Release(pilot_id=n.pilot_id, node=n.name, reason=limit.reason) for n in too_many]
    remaining_pool = pool.without(why)
    return replace(draft.releasing(releases, is_held_off=False), pool=remaining_pool)


def _n_too_many(
    draft: Draft, limit: _Limit, free_nodes: Sequence[PoolNode], our_nodes: Sequence[PoolNode]
) -> int:
    """Return how many nodes, or parts of them, are more than a limit allows.

    A part counts as its share of the GPUs of its host. ``free_nodes`` go first, in this order.
    """
    if limit.is_of_pilots or draft.hosts is draft.census:
        return len(free_nodes) + len(our_nodes) - math.floor(limit.bound)
    by_name = draft.census.by_name
    free_shares = [share_of_host(by_name[node.name]) for node in free_nodes]
    our_shares = [share_of_host(by_name[node.name]) for node in our_nodes]
    excess = sum(free_shares) + sum(our_shares) - limit.bound
    count = 0
    for share in (*free_shares, *sorted(our_shares, reverse=True)):
        if excess <= LEAST_SHARE:
            break
        excess -= share
        count += 1
    return count


def _limits(draft: Draft) -> Iterator[_Limit]:
    """Yield the limits: those on fewer nodes first, so that they leave others room."""
    settings = draft.given.settings
    if settings.limits.share_of_idle < 1.0:
        yield from _shares(draft)
    if settings.limits.is_of_nodes:
        yield from _by_name(draft)
    bounds: list[_Limit] = []
    if settings.max_nodes is not None:
        reason = _reason(settings, settings.max_nodes)
        bounds.append(_Limit(bound=settings.max_nodes, reason=reason))
    if settings.max_held_nodes is not None:
        reason = _reason(settings, settings.max_held_nodes)
        bounds.append(_Limit(bound=settings.max_held_nodes, reason=reason, is_of_pilots=True))
    # The smaller one first: where all are whole nodes, the other one then binds nothing.
    yield from sorted(bounds, key=lambda limit: limit.bound)


def _shares(draft: Draft) -> Iterator[_Limit]:
    """Yield the limits on the share of each type's idle nodes."""
    census, most_share = draft.census, draft.given.settings.limits.share_of_idle
    has_parts = draft.hosts is not census
    counts = defaultdict[str, float](float)
    for name, part in census.parts.items():
        if name in census.free or name in census.ours:
            share = 1.0
            if has_parts:
                share = share_of_host(census.by_name[name])
            counts[part.gpu_type] += share
    names_by_type: dict[str, set[str]] = {}
    for node in draft.pool.nodes:
        names_by_type.setdefault(node.node_type, set()).add(node.name)
    for node_type, count in sorted(counts.items()):
        reason = (
            f"The policy lends {most_share:.0%} of the idle nodes of type {node_type} at most"
            " (max_share_of_idle)."
        )
        among = names_by_type.get(node_type, frozenset[str]())
        yield _Limit(bound=most_share * count + LEAST_SHARE, reason=reason, among=among)


def _by_name(draft: Draft) -> Iterator[_Limit]:
    """Yield the limits on types, then those on partitions."""
    limits = draft.given.settings.limits
    node_by_name = draft.census.by_name
    by_type: dict[str, set[str]] = {}
    by_partition: dict[str, set[str]] = {}
    for node in draft.pool.nodes:
        by_type.setdefault(node.node_type, set()).add(node.name)
        for partition in node_by_name[node.name].partitions:
            by_partition.setdefault(partition, set()).add(node.name)
    for noun, groups, by_name, key in (
        ("type", by_type, limits.by_type, "max_nodes_by_type"),
        ("partition", by_partition, limits.by_partition, "max_nodes_by_partition"),
    ):
        for name, names in sorted(groups.items()):
            max_nodes = limit_of(by_name, name)
            if max_nodes is not None:
                reason = f"The policy allows {_nodes(max_nodes)} of {noun} {name} ({key})."
                yield _Limit(bound=max_nodes, reason=reason, among=names)


def _nodes(most: int) -> str:
    return f"{most} node{'s' if most != 1 else ''} at most"


def _reason(settings: Settings, most: int) -> str:
    nodes = _nodes(most)
    if settings.max_held_nodes != most:
        return f"The policy allows {nodes} (max_nodes)."
    return (
        f"{BACKS_OFF}: it holds {nodes} for now,"
        " because nodes were handed over too late or in vain (bftrainer report harm)."
    )


def keep_reserve(draft: Draft) -> Draft:
    """Build the pool, and release as many nodes as the reserve lacks."""
    draft = _with_pool(draft)
    releases = list(_releases(draft))
    if not releases:
        return draft
    return _with_pool(draft.releasing(releases, is_held_off=True))


def _releases(draft: Draft) -> Iterator[Release]:
    """Release what the reserve lacks beyond the nodes already coming back.

    Nodes on which jobs are about to start (perhaps just announced) do not count for the reserve.
    Those that another daemon took of it do: it gives them back, too, and would take more.
    """
    memory, settings = draft.memory, draft.given.settings
    size = settings.reserve_nodes_per_type + settings.reserve_extra_nodes
    node_by_name = draft.census.by_name
    reserved = Counter([node_by_name[name].node_type for name in draft.pool.reserve])
    if memory.reserve_taken:
        reserved += reserve_taken(memory, draft.census)
    our_nodes: dict[str, list[PoolNode]] = {}  # by type
    for node in draft.pool.nodes:
        of_type = our_nodes.setdefault(node.node_type, [])
        if node.pilot_id:
            of_type.append(node)
    lacking = sorted([node_type for node_type in our_nodes if reserved[node_type] < size])
    coming_by_type = Counter[str]()
    if lacking:
        for name in (draft.coming_back | _unconfirmed(draft)) - draft.for_jobs:
            coming_by_type[node_by_name[name].node_type] += 1
    released_nodes = [release.node for release in draft.releases]
    for node_type in lacking:
        ours = our_nodes[node_type]
        count = min(size - reserved[node_type], len(ours)) - coming_by_type[node_type]
        if count <= 0:
            continue
        for node in cheapest(count, ours, draft.pick, memory.assignment, released_nodes):
            yield Release(
                pilot_id=node.pilot_id,
                node=node.name,
                reason="The reserve for small and immediate jobs is used up.",
            )


def _unconfirmed(draft: Draft) -> set[str]:
    """Return the free nodes that were not yet idle in enough snapshots."""
    census, confirmations = draft.census, draft.given.settings.idle_confirmations
    unconfirmed = set[str]()
    for name in census.free - census.ours.keys() - census.leaving:
        if draft.memory.idle_seen.get(name, 0) < confirmations:
            unconfirmed.add(name)
    return unconfirmed


def _with_pool(draft: Draft) -> Draft:
    """Build the pool, counting the released pilots as leaving."""
    given, queue = draft.given, draft.queue
    released_ids = {release.pilot_id for release in draft.releases}
    pilots: list[PilotView] = []
    for pilot in given.pilots:
        if pilot.pilot_id in released_ids:
            pilots.append(replace(pilot, is_leaving=True))
        else:
            pilots.append(pilot)
    spared: AbstractSet[str] = frozenset()
    if draft.hosts is not draft.census:
        spared = giveback_parts.spared(draft)
    pool = build_pool(
        draft.census,
        queue.gap_ends,
        earliest(draft.planned_starts, queue.sets),
        pilots,
        draft.memory,
        given.settings,
        given.now_s,
        gap_end(given),
        spared,
    )
    at_s = wake_at_s(given)
    wakes_s: tuple[float, ...] = ()
    if at_s is not None:
        wakes_s = (at_s,)
    if draft.end_cost_s > given.settings.harm_slo_s:
        pool = leave_to_jobs(pool, queue, draft.end_cost_s)
    cools: dict[str, str] = {}  # without a pilot; ``allocation`` skips those with one
    for node in pool.nodes:
        if node.name in given.cooling and not node.pilot_id:
            cools[node.name] = given.cooling[node.name].sentence(given.now_s)
    return replace(draft, pool=pool.without(cools), wakes_s=wakes_s)
