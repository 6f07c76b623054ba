"""Sizes that fit so many nodes, when what each row is worth is given.

Takes Rows with their worth, returns the best rows by the dynamic program of the size-only
solver, or the price per node that bounds them. Called by the graded search.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from milp.exact.dual import solve_pool
from milp.graded.rows import Rows
from milp.tables import FloatArray, IntArray

MAX_PRICE_STEPS = 40
Group: TypeAlias = tuple[Rows, NDArray[np.intp], int]  # rows, their indices, nodes


def size_groups(rows: Rows, class_of: IntArray, counts: IntArray) -> list[Group]:
    """Trainers that compete among themselves only, with the nodes there are for them.

    When every trainer is bound to one class, each class has its own sizes to fit.
    """
    n_classes = int(class_of.max(initial=0)) + 1
    everything = [(rows, np.arange(len(rows.size)), int(counts.sum()))]
    if n_classes == 1:
        return everything
    is_of_class = class_of[:, None] == np.arange(n_classes)
    reach = np.logical_or.reduceat((rows.limit + rows.fixed) @ is_of_class > 0, rows.starts())
    if (reach.sum(axis=1) > 1).any():
        return everything
    home = reach.argmax(axis=1)[_places(rows)]
    groups = [np.flatnonzero(home == k) for k in np.unique(home)]
    nodes = (counts @ is_of_class)[np.unique(home)].tolist()
    return [(rows.keep(of_k), of_k, n) for of_k, n in zip(groups, nodes, strict=True)]


def fit_sizes(
    rows: Rows, worth: FloatArray, capacity: int, current: IntArray, tolerance: float
) -> tuple[float, NDArray[np.intp]] | None:
    """The best rows whose sizes fit the nodes, and their worth; None: none do."""
    starts = rows.starts()
    least = np.minimum.reduceat(rows.size, starts)
    place = _places(rows)
    above = rows.size - least[place]
    allowed = np.full((len(starts), int(above.max()) + 1), -np.inf)
    np.maximum.at(allowed, (place, above), worth)
    if capacity < least.sum():
        return None
    answer = solve_pool(allowed, current - least, capacity - int(least.sum()), tolerance)
    of_trainer = allowed[np.arange(len(starts)), answer.sizes]
    is_pick = (above == answer.sizes[place]) & (worth == of_trainer[place])
    picks = np.flatnonzero(is_pick)
    return float(of_trainer.sum()), picks[rows.keep(picks).starts()]


def price_of_size(rows: Rows, worth: FloatArray, capacity: int) -> float:
    """The price per node that minimises the bound, by intersecting tangents."""
    starts = rows.starts()
    place = _places(rows)

    def at(price: float) -> tuple[float, int]:
        reduced = worth - price * rows.size
        most = np.maximum.reduceat(reduced, starts)
        picks = np.flatnonzero(reduced == most[place])
        first = picks[np.flatnonzero(np.diff(rows.trainer[picks], prepend=-1))]
        usage = int(rows.size[first].sum())
        return float(most.sum()) + price * usage, usage

    value_over, over = at(0.0)
    if over <= capacity:
        return 0.0
    least = np.minimum.reduceat(rows.size, starts)
    is_least = rows.size == least[place]
    fits = int(least.sum())
    value_fits = float(np.maximum.reduceat(np.where(is_least, worth, -np.inf), starts).sum())
    price = 0.0
    for _ in range(MAX_PRICE_STEPS):
        price = max((value_over - value_fits) / (over - fits), 0.0)
        value, usage = at(price)
        if usage in (over, fits):
            break
        if usage > capacity:
            value_over, over = value, usage
        else:
            value_fits, fits = value, usage
    return price


def _places(rows: Rows) -> NDArray[np.intp]:
    """[m]: which of the trainers that have rows here it is."""
    starts = rows.starts()
    return np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows.size)))
