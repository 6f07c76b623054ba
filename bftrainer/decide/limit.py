"""Limits the number of nodes, by policy and while the daemon backs off: a stage of ``decision``.

``max_held_nodes`` is set by ``bftrainer.harm.backoff``. Nodes without a pilot leave the pool
first, shortest gap first; then pilots are released, the cheapest for the trainers first. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.decide.draft import Draft
from bftrainer.model.decision import Release, Settings


def stage(draft: Draft) -> Draft:
    """Remove the excess nodes from the pool, and release the pilots among them."""
    pool, settings = draft.pool, draft.given.settings
    limits = [m for m in (settings.max_nodes, settings.max_held_nodes) if m is not None]
    most = min(limits, default=None)
    if most is None or len(pool.nodes) <= most:
        return draft
    count = len(pool.nodes) - most
    free = sorted(
        (n for n in pool.nodes if not n.pilot_id),
        key=lambda n: (n.usable_until_s is not None, -(n.usable_until_s or 0.0), n.name),
        reverse=True,
    )[:count]
    ours = [n for n in pool.nodes if n.pilot_id]
    too_many = draft.cheapest(count - len(free), ours)
    out = {n.name for n in (*free, *too_many)}
    reason = _reason(settings, most)
    releases = [Release(pilot_id=n.pilot_id, node=n.name, reason=reason) for n in too_many]
    left = pool.without(dict.fromkeys(out, reason))
    return replace(draft.releasing(releases, is_held_off=False), pool=left)


def _reason(settings: Settings, most: int) -> str:
    nodes = f"{most} node{'s' if most != 1 else ''} at most"
    if settings.max_held_nodes != most:
        return f"The policy allows {nodes} (max_nodes)."
    return (
        f"bftrainer backs off: it holds {nodes} for now,"
        " because nodes were handed over too late or in vain (bftrainer report harm)."
    )
