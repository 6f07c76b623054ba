"""Prices of grades to begin with: near enough that the bounds are good after a few steps.

Takes Rows, nodes by grade and the seconds they earn; returns prices. Called by the graded
search. Where trainers are many, what counts is how long a node trains: the price per
second that clears the market of seconds is found by intersecting tangents.
"""

from __future__ import annotations

import numpy as np

from milp.graded.rows import Rows, used_at, worth_at
from milp.tables import FloatArray, IntArray

EVERY = 4  # of the sizes one in so many is enough to find prices
LATE = 1 / 8  # of the longest seconds: what a node must earn before it is worth anything
MAX_STEPS = 8
SWEEPS = 2  # over the classes


def thin_out(rows: Rows, current: IntArray) -> Rows:
    """Some of the sizes, among them each trainer's first row and its current size."""
    is_kept = np.arange(len(rows.size)) % EVERY == 0
    is_kept[rows.starts()] = True
    return rows.keep(is_kept | (rows.size == current[rows.trainer]))


def bound_at(rows: Rows, counts: IntArray, prices: FloatArray) -> tuple[float, IntArray]:
    """What no choice of these rows can exceed, and the nodes taken by grade there."""
    worth = worth_at(rows, prices)
    most = np.maximum.reduceat(worth, rows.starts())
    picks = rows.keep(worth == most[rows.trainer])
    used: IntArray = used_at(picks.keep(picks.starts()), prices).sum(axis=0)
    return float(most.sum() + prices @ counts), used


def market_prices(
    rows: Rows, counts: IntArray, seconds: FloatArray, class_of: IntArray
) -> FloatArray:
    """Per class the price of a second that minimises the bound, times the seconds.

    The classes in turn, the others' prices kept.
    """
    sold = np.maximum(seconds - LATE * float(seconds.max(initial=0.0)), 0.0)
    prices = np.zeros_like(sold)
    classes = np.unique(class_of)
    for _ in range(SWEEPS if len(classes) > 1 else 1):
        for k in classes:
            of_class = np.where(class_of == k, sold, 0.0)
            prices = _clear_market(rows, counts, of_class, np.where(of_class > 0, 0.0, prices))
    return prices


def _clear_market(rows: Rows, counts: IntArray, sold: FloatArray, others: FloatArray) -> FloatArray:
    """``others`` plus the price per second times ``sold`` where the bound is least."""
    offered = float(sold @ counts)

    def at(price: float) -> tuple[float, float]:
        bound, used = bound_at(rows, counts, others + price * sold)
        return bound, offered - float(used @ sold)

    low, high = 0.0, float(rows.rate.max(initial=0.0))
    (bound_low, slope_low), (bound_high, slope_high) = at(low), at(high)
    price = low
    for _ in range(MAX_STEPS if slope_low < 0 else 0):
        if slope_high <= slope_low:
            break
        price = (bound_low - bound_high + high * slope_high - low * slope_low) / (
            slope_high - slope_low
        )
        if not low < price < high:
            break
        bound, slope = at(price)
        if slope in (slope_low, slope_high):
            break
        if slope < 0:
            low, bound_low, slope_low = price, bound, slope
        else:
            high, bound_high, slope_high = price, bound, slope
    prices: FloatArray = others + price * sold
    return prices
