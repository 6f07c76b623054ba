"""Numbers in, summaries out: quantiles and bootstrap intervals. Pure.

Used by every benchmark script, so that a median or a 95th percentile means the same
everywhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import median

RESAMPLES = 2000
P95_NEEDS = 20  # below, a 95th percentile is the maximum under another name


def quantile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that at least the share ``q`` of all does not exceed."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def tail(values: Sequence[float]) -> tuple[str, float]:
    """Return the name and value of the tail figure: p95, or the maximum of few."""
    if len(values) < P95_NEEDS:
        return "max", max(values)
    return "p95", quantile(values, 0.95)


def ratio_interval(
    a_blocks: Sequence[Sequence[float]], b_blocks: Sequence[Sequence[float]], seed: int = 1
) -> tuple[float, float, float]:
    """Return median(a) / median(b) and its 95% interval.

    Block i of ``a`` ran beside block i of ``b``; whole pairs are resampled, because
    the values inside one block share their disturbances.
    """
    if len(a_blocks) != len(b_blocks) or not a_blocks:
        raise ValueError("blocks come in pairs")
    chance = random.Random(seed)  # noqa: S311 - statistics, not secrets
    pairs = list(zip(a_blocks, b_blocks, strict=True))
    ratios = sorted(_ratio([chance.choice(pairs) for _ in pairs]) for _ in range(RESAMPLES))
    return _ratio(pairs), quantile(ratios, 0.025), quantile(ratios, 0.975)


def _ratio(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    a = median(v for block, _ in pairs for v in block)
    b = median(v for _, block in pairs for v in block)
    return a / b


def poisson_interval(count: int) -> tuple[float, float]:
    """Return the exact 95% interval of the mean behind a count."""
    most = 2.0 * count + 20.0

    def up_to(k: int, mean: float) -> float:
        terms = (n * math.log(mean) - mean - math.lgamma(n + 1) for n in range(k + 1))
        return sum(map(math.exp, terms)) if mean > 0.0 else 1.0

    low = _solve(lambda mean: up_to(count - 1, mean), 0.975, most) if count else 0.0
    return low, _solve(lambda mean: up_to(count, mean), 0.025, most)


def share_interval(count: int, total: int) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) 95% interval of a share."""

    def up_to(k: int, share: float) -> float:
        if k >= total or not 0.0 < share < 1.0:
            return 1.0 if k >= total or share <= 0.0 else 0.0
        logs = math.log(share), math.log1p(-share)
        ways = (
            math.lgamma(total + 1) - math.lgamma(n + 1) - math.lgamma(total - n + 1)
            for n in range(k + 1)
        )
        return sum(math.exp(w + n * logs[0] + (total - n) * logs[1]) for n, w in enumerate(ways))

    low = _solve(lambda share: up_to(count - 1, share), 0.975, 1.0) if count else 0.0
    return low, _solve(lambda share: up_to(count, share), 0.025, 1.0) if count < total else 1.0


def _solve(falls: Callable[[float], float], to: float, most: float) -> float:
    """Return where a falling function of 0 to ``most`` comes down to a value."""
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if falls(middle) > to else (low, middle)
    return (low + high) / 2.0
