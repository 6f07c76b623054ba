"""The reserve for small and immediate jobs, filled up again: a stage of ``decision``. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bftrainer.decide.draft import Draft
from bftrainer.decide.giveback import coming_back
from bftrainer.decide.pool import FREE_STATES
from bftrainer.decide.types import Release


def stage(draft: Draft) -> Draft:
    """Sort the nodes, and free as many as the reserve lacks."""
    draft = draft.with_pool()
    releases = list(_releases(draft))
    return draft.releasing(releases, is_held_off=True).with_pool() if releases else draft


def _releases(draft: Draft) -> Iterator[Release]:
    """Release what is missing and not on its way back.

    What jobs are about to start on, announced a moment ago perhaps, is nobody's reserve.
    """
    given, memory, settings = draft.given, draft.memory, draft.given.settings
    size = settings.reserve_nodes_per_type + settings.reserve_extra_nodes
    type_of = {n.name: n.node_type for n in given.snapshot.nodes or ()}
    has = Counter(type_of[name] for name in draft.pool.reserve)
    lacking = sorted({n.node_type for n in draft.pool.nodes if has[n.node_type] < size})
    coming = set[str]()
    if lacking:
        coming = coming_back(given.snapshot, given.pilots, memory) | _unconfirmed(draft)
    comes = Counter(type_of[name] for name in coming - draft.for_jobs)
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
    """Return the free nodes that are candidates as soon as they have been idle long enough."""
    given = draft.given
    piloted = {p.node for p in given.pilots}
    return {
        n.name
        for n in given.snapshot.nodes or ()
        if n.state in FREE_STATES
        and n.name not in piloted
        and draft.memory.idle_seen.get(n.name, 0) < given.settings.idle_confirmations
    }
