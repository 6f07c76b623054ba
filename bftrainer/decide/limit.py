"""Limits the number of held nodes while the daemon backs off: a stage of ``decision``. Pure.

``max_held_nodes`` is set by ``bftrainer.harm.backoff``. Nodes without a pilot leave the pool
first, shortest gap first; then pilots are released, the cheapest for the trainers first.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.decide.draft import Draft
from bftrainer.model.decision import Release


def stage(draft: Draft) -> Draft:
    """Remove the excess nodes from the pool, and release the pilots among them."""
    pool, most = draft.pool, draft.given.settings.max_held_nodes
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
    reason = (
        f"bftrainer backs off: it holds {most} node{'s' if most != 1 else ''} at most for now,"
        " because nodes were handed over too late or in vain (bftrainer report harm)."
    )
    releases = [Release(pilot_id=n.pilot_id, node=n.name, reason=reason) for n in too_many]
    left = pool.without(dict.fromkeys(out, reason))
    return replace(draft.releasing(releases, is_held_off=False), pool=left)
