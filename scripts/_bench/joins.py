"""How much time remains until nodes join again: a rule for the forward-looking time.

Takes which nodes are idle or ours at each look, keeps a few sums (``Joins``, the input of
the next look), returns T_fwd. Nothing but the past goes in. Used by ``forward_time``.

Why that time: growing now instead of at the next join earns the new nodes' rate until
then, and the next join would pay the rescale anyhow, once for both. So a rescale is worth
it when it pays back within that time, which is what T_fwd means in eq. 16 of the BFTrainer
paper. docs/design/estimators.md has what was found.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

HALF_LIFE_S = 2 * 3600.0  # what was seen that long ago counts half
USUAL_GAP_S = 120.0  # one gap of this length counts as seen to begin with
SHORTEST_S, LONGEST_S = 1.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Joins:
    """What the looks have shown; sums fade with age."""

    present: frozenset[str] = frozenset()  # nodes at the last look
    seen_s: float | None = None  # when that was; None: never
    time_s: float = USUAL_GAP_S
    joins: float = 1.0  # looks in that time at which nodes had joined


def look(before: Joins, present: AbstractSet[str], now_s: float) -> Joins:
    """Count in one look; ``present`` are the nodes that are idle or ours.

    What the first look shows has not joined. Looks in between change nothing.
    """
    if before.seen_s is None:
        return Joins(present=frozenset(present), seen_s=now_s)
    span_s = max(0.0, now_s - before.seen_s)
    fade = 0.5 ** (span_s / HALF_LIFE_S)
    has_joined = not present <= before.present
    return Joins(
        present=before.present if present == before.present else frozenset(present),
        seen_s=now_s,
        # The span itself fades as it passes: its integral, however many looks cut it.
        time_s=fade * before.time_s + (1.0 - fade) * HALF_LIFE_S / math.log(2.0),
        joins=fade * before.joins + has_joined,
    )


def until_next_join_s(seen: Joins) -> float:
    """Return the mean time between joins of the last hours: T_fwd."""
    return min(max(SHORTEST_S, seen.time_s / seen.joins), LONGEST_S)
