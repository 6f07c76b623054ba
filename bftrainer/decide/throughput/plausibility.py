"""Bounds on the throughputs that a user's curve or a worker's report may state.

Both are unverified input. The bounds are beyond any real value; within them what decisions compute
stays finite, exact, and small enough not to drown the worth of other trainers. Used by
``api.admission``, ``fleet.trainers.costs`` and ``curves``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

SLOWEST, FASTEST = 1e-6, 1e9  # samples per second, of each node and of a trainer
LEAP = 10.0  # an observation counts for at most this many times the known throughput


def is_plausible(size: int, samples_per_s: float) -> bool:
    """Return whether a trainer of that size may be that fast."""
    return SLOWEST * size <= samples_per_s <= FASTEST  # false of NaN


def most_believed(known: Iterable[tuple[int, float]], size: int) -> float:
    """Return the greatest throughput accepted at a size, given known sizes and throughputs.

    More nodes may be faster in proportion, and by ``LEAP`` more.
    """
    fastest = [samples_per_s * max(1.0, size / n) for n, samples_per_s in known]
    return LEAP * max(fastest, default=math.inf)
