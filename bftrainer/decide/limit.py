"""At most so many nodes held: what a daemon that backs off leaves alone. Pure.

``max_held_nodes`` comes from ``bftrainer.harm.backoff`` with the settings of a
decision. Pilots beyond it go, the cheapest for the trainers first; nodes without one
stay out of the pool, those whose gap ends soonest first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bftrainer.decide.pool import Pool
from bftrainer.decide.types import Release, Settings


def hold_at_most(
    pool: Pool, settings: Settings, cost_of: Callable[[str], tuple[float, str]]
) -> tuple[Pool, list[Release]]:
    """Return what remains of the pool, and the pilots to release.

    Args:
        pool: after give-back and reserve.
        settings: ``max_held_nodes``, None for as many as there are.
        cost_of: node name -> sort key, cheapest first for the trainers.
    """
    most = settings.max_held_nodes
    if most is None or len(pool.nodes) <= most:
        return pool, []
    ours = [n for n in pool.nodes if n.pilot_id]
    ours.sort(key=lambda n: (n.is_held, *cost_of(n.name)), reverse=True)  # dearest first
    free = sorted(
        (n for n in pool.nodes if not n.pilot_id),
        key=lambda n: (n.usable_until_s is not None, -(n.usable_until_s or 0.0), n.name),
    )
    out = {n.name: n for n in (ours + free)[most:]}
    reason = (
        f"bftrainer backs off: it holds {most} node{'s' if most != 1 else ''} at most for now,"
        " because nodes were handed over too late (bftrainer report harm)."
    )
    releases = [
        Release(pilot_id=n.pilot_id, node=n.name, reason=reason) for n in out.values() if n.pilot_id
    ]
    left = replace(
        pool,
        nodes=tuple(n for n in pool.nodes if n.name not in out),
        not_used={**pool.not_used, **dict.fromkeys(out, reason)},
    )
    return left, releases
