"""Which throughputs are believed, of a user's curve or of a worker's report.

Reports are a worker's own words, and a curve is a user's. Nothing real is beyond these bounds,
and whatever decisions compute within them stays finite, exact, and small enough beside the
worths of other trainers not to drown them. Asked by ``admission``, ``measure``,
``actuate.costs`` and ``curves``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

SLOWEST, FASTEST = 1e-6, 1e9  # samples per second, of each node and of a trainer
LEAP = 10.0  # so many times what is known is the most that one observation counts for


def is_plausible(size: int, samples_per_s: float) -> bool:
    """Whether a trainer of that size may be as fast as that."""
    return SLOWEST * size <= samples_per_s <= FASTEST  # false of NaN


def most_believed(known: Iterable[tuple[int, float]], size: int) -> float:
    """Return the fastest that is believed at a size, of sizes and throughputs that are known.

    More nodes may be faster in proportion, and ``LEAP`` times that.
    """
    fastest = [samples_per_s * max(1.0, size / n) for n, samples_per_s in known]
    return LEAP * max(fastest, default=math.inf)
