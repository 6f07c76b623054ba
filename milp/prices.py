"""Prices of a node by class that minimise the dual bound of the allocation problem.

Takes values by class, trainer and size; returns one price per class, in objective
units times seconds per node. Called by the solver for several classes. At prices p
no allocation is worth more than sum_j max(v_j(n) - p_k n) + sum_k p_k N_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milp.tables import FloatArray

MAX_CUTS = 64  # per class; 5 to 15 are usual, and stopping early only costs time later
RELATIVE_STEP = 1e-12  # of the bound: gains below it are float noise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The bound at some prices and a subgradient there."""

    prices: FloatArray
    bound: float
    slope: FloatArray  # nodes left over, by class; negative: nodes short


def find_prices(allowed: FloatArray, counts: Sequence[int]) -> FloatArray:
    """Minimise the bound over prices >= 0, one class nested in the other.

    ``allowed[k, j, n]`` is the value of size n of class k for trainer j, or -inf.
    """
    n_classes, n_trainers, width = allowed.shape
    columns = np.arange(width)
    rows = np.arange(n_trainers)
    capacity = np.asarray(counts, dtype=np.float64)
    # At this price not even the best single node pays.
    ceiling = float(np.max(allowed[:, :, 1:] - allowed[0, :, :1], initial=0.0)) + 1.0

    def cut_at(prices: FloatArray) -> _Cut:
        reduced = (allowed - prices[:, None, None] * columns).transpose(1, 0, 2)
        by_trainer = reduced.reshape(n_trainers, -1)
        picks = by_trainer.argmax(axis=1)
        usage = np.bincount(picks // width, weights=picks % width, minlength=n_classes)
        bound = float(by_trainer[rows, picks].sum() + prices @ capacity)
        return _Cut(prices=prices, bound=bound, slope=capacity - usage)

    def descend(prices: FloatArray, k: int) -> _Cut:
        """Minimise over the prices of classes k, k+1, ...; the others stay."""
        if k == n_classes:
            return cut_at(prices)

        def at(price: float) -> _Cut:
            moved = prices.copy()
            moved[k] = price
            return descend(moved, k + 1)

        low = at(0.0)
        if low.slope[k] >= 0:
            return low
        high = at(ceiling)
        best = min(low, high, key=lambda cut: cut.bound)
        for _ in range(MAX_CUTS):
            if high.slope[k] <= low.slope[k]:
                break
            # Where the two tangents meet is the lowest the bound can be.
            rise = low.bound - low.slope[k] * low.prices[k]
            fall = high.bound - high.slope[k] * high.prices[k]
            price = float((rise - fall) / (high.slope[k] - low.slope[k]))
            expected = rise + low.slope[k] * price
            cut = at(max(price, 0.0))
            best = min(best, cut, key=lambda cut: cut.bound)
            if cut.bound - expected <= RELATIVE_STEP * abs(cut.bound):
                break
            if cut.slope[k] < 0:
                low = cut
            else:
                high = cut
        # A mix of both sides has no slope along k: what the outer class needs to know.
        span = high.slope[k] - low.slope[k]
        share = high.slope[k] / span if span > 0 else 0.5
        slope = share * low.slope + (1 - share) * high.slope
        return _Cut(prices=best.prices, bound=best.bound, slope=slope)

    return descend(np.zeros(n_classes), 0).prices
