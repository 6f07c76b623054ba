"""Rows that fit the classes of nodes, near those that are best at the prices.

Takes Rows with their worth at some prices, returns one row per trainer that fit together.
Called by the graded search when the rows that prices suggest ask for more nodes of a
class than there are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from milp.graded.rows import Rows
from milp.graded.sizes import fit_sizes
from milp.tables import FloatArray, IntArray

SWEEPS = 2  # the second gives what the first left over


def fit_classes(
    rows: Rows,
    worth: FloatArray,
    class_of: IntArray,
    counts: IntArray,
    attempt: int,
    tolerance: float,
) -> NDArray[np.intp] | None:
    """In turn each trainer takes the best row that still fits.

    Attempts differ in whose turn is first: most worth per node, most worth, most nodes.
    None: a trainer is left whose least row does not fit; ``rows`` may lack size 0.
    """
    is_of_class = class_of[:, None] == np.arange(int(class_of.max(initial=0)) + 1)
    fixed, limit = rows.fixed @ is_of_class, rows.limit @ is_of_class
    left = counts @ is_of_class
    starts = rows.starts()
    ends = np.append(starts[1:], len(rows.size))
    picks = np.full(len(starts), -1, dtype=np.intp)
    taken = np.zeros((len(starts), len(left)), dtype=np.int64)
    urgency = (worth / np.maximum(rows.size, 1), worth, rows.size)[attempt % 3]
    most = np.maximum.reduceat(urgency, starts)
    for _ in range(SWEEPS):
        for j in np.argsort(-most, kind="stable").tolist():
            left += taken[j]
            span = slice(starts[j], ends[j])
            room = np.minimum(limit[span], left - fixed[span])
            fits = (room >= 0).all(axis=1) & (room.sum(axis=1) >= rows.need[span])
            if not fits.any():
                return None
            pick = int(np.where(fits, worth[span], -np.inf).argmax())
            taken[j] = fixed[span][pick] + _share(room[pick], int(rows.need[span][pick]))
            left -= taken[j]
            picks[j] = starts[j] + pick
    return _settle(rows, worth, picks, limit + fixed, left, tolerance)


def _settle(
    rows: Rows,
    worth: FloatArray,
    picks: NDArray[np.intp],
    reach: IntArray,
    left: IntArray,
    tolerance: float,
) -> NDArray[np.intp]:
    """The best sizes for the classes the picks have, exactly, class by class.

    Trainers that reach into several classes stay as they are.
    """
    home = np.where((reach > 0).sum(axis=1) == 1, reach.argmax(axis=1), -1)
    for k in range(len(left)):
        movers = rows.trainer[picks[home[picks] == k]]
        if not len(movers):
            continue
        may = np.flatnonzero(np.isin(rows.trainer, movers) & ((home == k) | (rows.size == 0)))
        few = rows.keep(may)
        capacity = int(left[k] + rows.size[picks[movers]].sum())
        found = fit_sizes(few, worth[may], capacity, np.full(len(movers), -1), tolerance)
        if found is not None:
            picks[movers] = may[found[1]]
    return picks


def _share(room: IntArray, need: int) -> IntArray:
    """So many nodes from the classes with most room."""
    order = np.argsort(-room, kind="stable")
    before = np.cumsum(room[order]) - room[order]
    taken = np.zeros_like(room)
    taken[order] = np.clip(need - before, 0, room[order])
    return taken
