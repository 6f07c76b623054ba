"""Numbers in, summaries out: quantiles and bootstrap intervals. Pure.

Used by every benchmark script, so that a median or a 95th percentile means the same
everywhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist, median

RESAMPLES = 2000
P95_NEEDS = 20  # below, a 95th percentile is the maximum under another name
BEYOND = 0.025  # the chance that a quantile lies below its 95% interval, and that above
# Five values all lie on the same given side of their median by a chance of 0.5 ** 5 > BEYOND.
LEAST_PAIRS = 6
Ends = tuple[float | None, float | None]  # of an interval; None: nothing bounds it there


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its 95% interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of_samples(cls, mean: float, samples: Iterable[float]) -> Interval:
        """Return what resampling says of a mean."""
        by_size = sorted(samples)
        last = len(by_size) - 1
        return cls(mean=mean, low=by_size[round(0.025 * last)], high=by_size[round(0.975 * last)])


def quantile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that at least the share ``q`` of all does not exceed."""
    if not values:
        raise ValueError("no values")
    by_size = sorted(values)
    return by_size[max(0, math.ceil(q * len(by_size)) - 1)]


def tail(values: Sequence[float]) -> tuple[str, float]:
    """Return the name and value of the tail figure: p95, or the maximum of few."""
    if len(values) < P95_NEEDS:
        return "max", max(values)
    return "p95", quantile(values, 0.95)


def quantile_interval(values: Sequence[float], q: float) -> Ends:
    """Return the values between which the quantile of all lies with 95%, whatever their law.

    How many of n values a quantile exceeds is binomial. Few values do not bound a high one.
    """
    n, by_size = len(values), sorted(values)
    below = list(accumulate(math.comb(n, k) * q**k * (1.0 - q) ** (n - k) for k in range(n)))
    low_ranks = [k for k, chance in enumerate(below) if chance <= BEYOND]
    high_ranks = [k for k, chance in enumerate(below) if chance >= 1.0 - BEYOND]
    low = by_size[low_ranks[-1]] if low_ranks else None
    return low, by_size[high_ranks[0]] if high_ranks else None


def share_interval(count: int, of: int) -> Ends:
    """Return the 95% interval of a share in percent, by Wilson's score (1927)."""
    if not of:
        return None, None
    z = NormalDist().inv_cdf(1.0 - BEYOND)
    share, spread = count / of, z * z / of
    middle = (share + spread / 2.0) / (1.0 + spread)
    half = math.sqrt(spread * share * (1.0 - share) + spread * spread / 4.0) / (1.0 + spread)
    return 100.0 * (middle - half), 100.0 * (middle + half)


def ratio_interval(
    a_blocks: Sequence[Sequence[float]],
    b_blocks: Sequence[Sequence[float]],
    seed: int = 1,
    of: Callable[[Sequence[float]], float] = median,
) -> tuple[float, float, float]:
    """Return of(a) / of(b), the medians' as a rule, and its 95% interval.

    Block i of ``a`` ran beside block i of ``b``; whole pairs are resampled, because
    the values inside one block share their disturbances.
    """
    if len(a_blocks) != len(b_blocks) or not a_blocks:
        raise ValueError("blocks come in pairs")
    chance = random.Random(seed)  # noqa: S311 - statistics, not secrets
    pairs = list(zip(a_blocks, b_blocks, strict=True))
    ratios = sorted(_ratio([chance.choice(pairs) for _ in pairs], of) for _ in range(RESAMPLES))
    return _ratio(pairs, of), quantile(ratios, 0.025), quantile(ratios, 0.975)


def ends_of_pairs(low: float, high: float, n_pairs: int) -> Ends:
    """Return the ends of ``ratio_interval`` for comparisons with other runs.

    Few pairs, resampled, give an interval that is much too narrow; a single one gives a point.
    """
    if n_pairs < LEAST_PAIRS:
        return None, None
    return low, high


def _ratio(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    of: Callable[[Sequence[float]], float],
) -> float:
    a = of([v for block, _ in pairs for v in block])
    b = of([v for _, block in pairs for v in block])
    return a / b
