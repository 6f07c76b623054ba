"""Which figures chance alone would give: the same runs, called A and B at random.

Were bftrainer without effect, it would not matter which runs of a draw had it. So each draw's
runs are shared out anew, as many of each kind, in every way or in many, and the figures beyond
the control are taken each time. A measured one within them is no evidence of harm, and none
that there is none: it says how finely so few runs can tell. Pure; called by ``compare``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

WAYS = 1000  # of sharing out that are tried at most
SHARE = 0.95  # of them lie within what is said

Columns = tuple[Sequence[Sequence[float]], int]  # starts by run, and how many had bftrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """Between which figures beyond the control most ways of sharing out lie, s."""

    n_ways: int
    p95_s: tuple[float, float]
    p99_s: tuple[float, float]


def by_chance(draws: Sequence[Columns]) -> Chance:
    """Share the runs of each draw out anew, and take the figures.

    Args:
        draws: of each the starts of its jobs in all its runs, s, and how many of those runs
            were with bftrainer.
    """
    starts_s = [np.asarray(runs, dtype=float) for runs, _ in draws]
    found = np.array(
        [_beyond_s(starts_s, way) for way in _ways([(len(runs), k) for runs, k in draws])]
    )
    low, high = np.quantile(found, ((1.0 - SHARE) / 2.0, (1.0 + SHARE) / 2.0), axis=0)
    return Chance(
        n_ways=len(found),
        p95_s=(float(low[0]), float(high[0])),
        p99_s=(float(low[1]), float(high[1])),
    )


def _ways(sizes: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, ...]]]:
    """Choose, draw by draw, which runs are called B."""
    choices = [list(combinations(range(n), k)) for n, k in sizes]
    if prod(comb(n, k) for n, k in sizes) <= WAYS:
        yield from product(*choices)
        return
    chance = random.Random(1)  # noqa: S311  the same runs, the same figures
    for _ in range(WAYS):
        yield [chance.choice(of_draw) for of_draw in choices]


def _beyond_s(draws: Sequence[NDArray[np.float64]], way: Sequence[tuple[int, ...]]) -> list[float]:
    """Return p95 and p99 of B less each A, less those of each A less each other.

    Quantiles as in ``stats``; in numpy, because they are taken a thousand times.
    """
    harm, control = [], []
    for starts_s, chosen in zip(draws, way, strict=True):
        others = [n for n in range(len(starts_s)) if n not in chosen]
        harm += [starts_s[b] - starts_s[a] for b in chosen for a in others]
        control += [starts_s[a] - starts_s[o] for a in others for o in others if a != o]
    both = (np.concatenate(harm), np.concatenate(control))
    return [
        float(np.subtract(*(np.quantile(kind, q, method="inverted_cdf") for kind in both)))
        for q in (0.95, 0.99)
    ]
