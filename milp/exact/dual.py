"""One pool, exactly: the price of a node settles most trainers, the rest is searched.

Takes one matrix of values by trainer and size, returns the best sizes and what one
node more is worth; called by the solver per pool. Steps: (1) Lagrangian dual in the
price of a node by intersecting tangents; (2) a first answer by filling up and single
improvements, which bounds the loss any better answer can have against the price;
(3) sizes with a larger loss are out, and the dense program decides among the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from milp.exact.window import Choice, solve_window
from milp.tables import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswer:
    """Best sizes of one pool."""

    sizes: IntArray
    value: float
    value_of_one_more: float  # value were there one node more
    undecided: int  # trainers the price did not settle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    """What every trainer would take at one price, by itself."""

    picks: NDArray[np.intp]
    usage: int
    value: float


def solve_pool(
    allowed: FloatArray, current: IntArray, capacity: int, tolerance: float
) -> PoolAnswer:
    """Maximise the sum of values under the capacity; ties: rescales, then FCFS.

    ``allowed[j, n]`` is -inf where trainer j may not have size n; size 0 always is.
    """
    n_trainers = len(allowed)
    if n_trainers == 0:
        return PoolAnswer(
            sizes=np.zeros(0, dtype=np.int64), value=0.0, value_of_one_more=0.0, undecided=0
        )
    rows = np.arange(n_trainers)
    price, cheap, dear = _find_price(allowed, capacity)
    first = _fill(cheap.picks, dear.picks, capacity)
    first = _improve(allowed, first, capacity)
    larger = _improve(allowed, first, capacity + 1)
    value = float(allowed[rows, first].sum())
    value_of_larger = float(allowed[rows, larger].sum())
    reduced = allowed - price * np.arange(allowed.shape[1])
    best = reduced.max(axis=1)
    bound = float(best.sum()) + price * capacity
    # Keep what an optimum with the capacity, or with one node more, can contain.
    gap = max(bound - value, bound + price - value_of_larger, 0.0) + 2 * tolerance
    survives = reduced >= (best - gap)[:, None]
    return _search(allowed, current, survives, capacity, tolerance)


def solve_pool_dense(
    allowed: FloatArray, current: IntArray, capacity: int, tolerance: float
) -> PoolAnswer:
    """The same answer from the dense program alone: slower, and nothing to reduce wrongly."""
    return _search(allowed, current, np.isfinite(allowed), capacity, tolerance)


def _search(
    allowed: FloatArray,
    current: IntArray,
    survives: NDArray[np.bool_],
    capacity: int,
    tolerance: float,
) -> PoolAnswer:
    """Decide among the surviving sizes of the trainers that have several."""
    sizes = survives.argmax(axis=1)
    undecided = np.flatnonzero(survives.sum(axis=1) > 1)
    settled = np.flatnonzero(survives.sum(axis=1) == 1)
    settled_value = float(allowed[settled, sizes[settled]].sum())
    choices = [_choice(allowed[j], survives[j], int(current[j])) for j in undecided]
    answer = solve_window(choices, capacity - int(sizes[settled].sum()), tolerance)
    for j, choice, pick in zip(undecided, choices, answer.picks, strict=True):
        sizes[j] = choice.sizes[pick]
    return PoolAnswer(
        sizes=sizes,
        value=settled_value + answer.value,
        value_of_one_more=settled_value + answer.value_of_one_more,
        undecided=len(undecided),
    )


def _choice(values: FloatArray, survives: NDArray[np.bool_], current: int) -> Choice:
    sizes = np.flatnonzero(survives)
    return Choice(sizes=sizes, values=values[sizes], rescales=(sizes != current).astype(np.int64))


def _find_price(allowed: FloatArray, capacity: int) -> tuple[float, _Point, _Point]:
    """Price that minimises the dual bound, with a fitting and a tempting point at it."""
    free = _point_at(allowed, 0.0)
    if free.usage <= capacity:
        return 0.0, free, free
    zero = allowed[:, 0]
    over = free  # takes too much; the price rises
    fits = _Point(picks=np.zeros(len(allowed), dtype=np.intp), usage=0, value=float(zero.sum()))
    while True:
        # Where the tangents of the two points meet; any price >= 0 gives a valid bound,
        # so float noise here can cost time but never the optimum.
        price = max((over.value - fits.value) / (over.usage - fits.usage), 0.0)
        point = _point_at(allowed, price)
        gain = (point.value - price * point.usage) - (fits.value - price * fits.usage)
        if gain <= 1e-12 * (abs(point.value) + abs(fits.value)) or point.usage in (
            over.usage,
            fits.usage,
        ):
            return price, fits, over
        if point.usage > capacity:
            over = point
        else:
            fits = point


def _point_at(allowed: FloatArray, price: float) -> _Point:
    picks = (allowed - price * np.arange(allowed.shape[1])).argmax(axis=1)
    value = float(allowed[np.arange(len(allowed)), picks].sum())
    return _Point(picks=picks, usage=int(picks.sum()), value=value)


def _fill(fits: NDArray[np.intp], over: NDArray[np.intp], capacity: int) -> NDArray[np.intp]:
    """Move trainers, first come first, to what they would take while it fits."""
    sizes = fits.copy()
    left = capacity - int(sizes.sum())
    for j in np.flatnonzero(over != fits):
        growth = int(over[j] - fits[j])
        if growth <= left:
            sizes[j] = over[j]
            left -= growth
    return sizes


def _improve(allowed: FloatArray, sizes: NDArray[np.intp], capacity: int) -> NDArray[np.intp]:
    """Change one trainer at a time while that gains, up to a fixed number of times."""
    sizes = sizes.copy()
    rows = np.arange(len(allowed))
    columns = np.arange(allowed.shape[1])
    for _ in range(len(allowed)):
        left = capacity - int(sizes.sum())
        gain = allowed - allowed[rows, sizes][:, None]
        gain[columns > (sizes + left)[:, None]] = -np.inf
        j, n = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[j, n] <= 0:
            break
        sizes[j] = n
    return sizes
