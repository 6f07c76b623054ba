"""Nodes on which workers failed again and again, as a decision sees them. Pure.

``actuate.quarantine`` says which nodes cool down and until when; ``decision`` offers them
to nobody. A pilot that holds one goes like any that nobody wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bftrainer.decide.pool import Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooling:
    """A node that is left alone for a while."""

    until_s: float
    failures: int  # in a row that are held against it
    trainer_id: str  # whose worker failed there last
    cause: str  # of that failure, one sentence

    def sentence(self, now_s: float) -> str:
        """Say why the node is not used, and for how long."""
        return (
            f"It cools down for {_span(self.until_s - now_s)} more: {self.failures} failures of"
            f" workers in a row, the last of {self.trainer_id} ({self.cause.rstrip('.')})."
        )


def leave_alone(pool: Pool, cooling: Mapping[str, Cooling], now_s: float) -> Pool:
    """Take the candidates that cool down out of a pool.

    One that is ours stays in it, for its pilot goes only when nobody has wanted it for a
    while; one of the reserve stays there, for it is free for ordinary jobs all the same.
    """
    why = {
        n.name: cooling[n.name].sentence(now_s)
        for n in pool.nodes
        if n.name in cooling and not n.pilot_id
    }
    if not why:
        return pool
    nodes = tuple([n for n in pool.nodes if n.name not in why])
    return replace(pool, nodes=nodes, not_used={**pool.not_used, **why})


def cooling_sentences(cooling: Mapping[str, Cooling], now_s: float) -> dict[str, str]:
    """Say of each node that cools down why, and for how long."""
    return {name: f"{name}: {one.sentence(now_s)}" for name, one in cooling.items()}


def _span(seconds: float) -> str:
    left_s = max(1.0, seconds)
    return f"{left_s:.0f} s" if left_s < 120.0 else f"{left_s / 60.0:.0f} min"
