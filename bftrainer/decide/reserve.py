"""Restores the reserve for small and immediate jobs: a stage of ``decision``. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bftrainer.batch.queue.occupancy import FREE_STATES, names_in, nodes_by_name
from bftrainer.decide.draft import Draft
from bftrainer.decide.giveback import coming_back
from bftrainer.model.decision import Release


def stage(draft: Draft) -> Draft:
    """Build the pool, and release as many nodes as the reserve lacks."""
    draft = draft.with_pool()
    releases = list(_releases(draft))
    return draft.releasing(releases, is_held_off=True).with_pool() if releases else draft


def _releases(draft: Draft) -> Iterator[Release]:
    """Release what the reserve lacks beyond the nodes already coming back.

    Nodes on which jobs are about to start (perhaps just announced) do not count for the reserve.
    """
    given, memory, settings = draft.given, draft.memory, draft.given.settings
    size = settings.reserve_nodes_per_type + settings.reserve_extra_nodes
    seen = nodes_by_name(given.snapshot.nodes or ())
    has = Counter(seen[name].node_type for name in draft.pool.reserve)
    lacking = sorted({n.node_type for n in draft.pool.nodes if has[n.node_type] < size})
    coming = set[str]()
    if lacking:
        coming = coming_back(given.snapshot, given.pilots, memory) | _unconfirmed(draft)
    comes = Counter(seen[name].node_type for name in coming - draft.for_jobs)
    for node_type in lacking:
        ours = [n for n in draft.pool.nodes if n.node_type == node_type and n.pilot_id]
        count = max(0, min(size - has[node_type], len(ours)) - comes[node_type])
        for node in draft.cheapest(count, ours):
            yield Release(
                pilot_id=node.pilot_id,
                node=node.name,
                reason="The reserve for small and immediate jobs is used up.",
            )


def _unconfirmed(draft: Draft) -> set[str]:
    """Return the free nodes that were not yet idle in enough snapshots."""
    given = draft.given
    piloted = {p.node for p in given.pilots}
    seen, enough = draft.memory.idle_seen, given.settings.idle_confirmations
    free = names_in(given.snapshot, *FREE_STATES) - piloted
    return {name for name in free if seen.get(name, 0) < enough}
