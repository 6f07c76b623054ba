"""Chooses the nodes and the stretches of time of a trace that are replayed.

A year of a large machine cannot be replayed twenty times in a minute. How much is
replayed follows from the trace and a seed, never from the speed of this machine, so
that the same question has the same answer everywhere.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise

from bftrainer.batch.traces.fragments import HOUR_S, Fragments

MOST_EQ_NODES = 64.0  # of a replay; a part of the nodes represents a larger pool
SHORTEST_S = 2 * HOUR_S  # of a stretch, because no trainer runs at its start
LONGEST_S = 24 * HOUR_S
ENOUGH = 8  # stretches for a good interval, if the trace is long enough
FEWEST = 4  # stretches for any


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A span of time; both None: the whole trace."""

    start_s: float | None = None
    length_s: float | None = None

    def of(self, trace: Fragments) -> Fragments:
        """Return this part of a trace."""
        if self.start_s is None or self.length_s is None:
            return trace
        return trace.restrict(start_s=self.start_s, hours=self.length_s / HOUR_S)


def some_nodes(trace: Fragments, seed: int) -> tuple[Fragments, float]:
    """Return neighbouring nodes with a pool of a replayable size, and their share of it.

    Neighbours, because nodes of one job come free together.
    """
    whole = trace.node_seconds()
    if trace.equivalent_nodes() <= MOST_EQ_NODES:
        return trace, 1.0
    count = math.ceil(len(trace.names) * MOST_EQ_NODES / trace.equivalent_nodes())
    chance = random.Random(seed)  # noqa: S311 - a sample, reproducible by its seed
    first = chance.randrange(len(trace.names) - count + 1)
    part = trace.restrict(slice(first, first + count))
    return part, part.node_seconds() / whole


def stretches(
    trace: Fragments, *, events_each: float, events: float, seed: int
) -> tuple[Stretch, ...]:
    """Return stretches of equal length, spread over the trace, with about so many events.

    Args:
        trace: to be replayed.
        events_each: in one stretch, within the limits of its length.
        events: in all of them together.
        seed: of the choice; one stretch is drawn from each of equally long parts, so that
            no hour of the day and no end of the trace is preferred.
    """
    per_s = len(trace.pool_changes()) / trace.duration_s
    wanted_s = max(SHORTEST_S, min(events_each / per_s, LONGEST_S, trace.duration_s / ENOUGH))
    n_all = int(trace.duration_s // wanted_s)
    if n_all < 2:
        return (Stretch(),)
    length_s = math.floor(trace.duration_s / n_all)
    n = min(n_all, max(FEWEST, round(events / (per_s * length_s))))
    chance = random.Random(seed)  # noqa: S311 - a sample, reproducible by its seed
    edges = [k * n_all // n for k in range(n + 1)]
    chosen = [chance.randrange(a, b) for a, b in pairwise(edges)]
    return tuple(
        Stretch(start_s=trace.span_s[0] + k * length_s, length_s=float(length_s)) for k in chosen
    )
