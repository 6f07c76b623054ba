"""What a search over used-node vectors is given, and what its states lose at least.

Menus of the trainers that can choose between classes, profiles of the others; the
bounds tell the search which states cannot be part of an answer within the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milp.classes.profile import Profile
from milp.tables import FloatArray, IntArray

KIND_BITS = 4  # of Menu.inner per dimension: the kind of run an inner size belongs to
MARKED = 60 // KIND_BITS  # dimensions of which inner sizes are told


@dataclass(frozen=True, slots=True, kw_only=True)
class Filler:
    """A run of inner sizes one trainer of a class may grow along, from its smallest."""

    gains: FloatArray  # [steps]: what the trainer is worth more than at the smallest
    losses: FloatArray  # [steps]: what it loses more than at the size that loses least


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """What one trainer can still choose from.

    The dimensions of ``uses`` are the classes, then the sets of classes from which
    nodes are still to be divided (``Search.dividing``).
    """

    trainer: int
    classes: IntArray
    sizes: IntArray
    uses: IntArray  # [o, d]
    values: FloatArray
    losses: FloatArray
    rescales: IntArray
    inner: IntArray  # KIND_BITS per dimension: not 0 for an inner size of it, see search
    floor: float = np.inf  # options left out lose at least this


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """All a search needs."""

    menus: Sequence[Menu]  # in FCFS order
    profiles: Sequence[Profile]  # [k]
    counts: IntArray  # [k]
    dividing: Sequence[tuple[int, ...]]  # sets of classes
    gap: float  # answers that lose more are of no interest
    tolerance: float
    limit: int  # vectors looked at in one step: bounds time
    # Where the runs of inner sizes are put off: the runs by class, and the whole menus.
    fillers: Sequence[Sequence[Filler]] = ()
    whole_menus: Sequence[Menu] = ()


class Bound:
    """What a vector of used nodes loses at least, whatever is chosen after it.

    Stage j > 0: the trainers before menu j are still to choose; stage 0: all chose;
    stage -k: the classes before k delivered their part to the sets of classes.
    """

    def __init__(self, task: Search) -> None:
        n_classes = len(task.counts)
        menus = task.whole_menus or task.menus
        self._counts, self._dividing, self._fillers = task.counts, task.dividing, task.fillers
        self._own = [profile.losses for profile in task.profiles]
        # What each class loses at least with some number of nodes or less, by at most how many
        self._lows: list[_RangeMinimum] = []
        for k, losses in enumerate(self._own if menus else []):
            fillers = task.fillers[k] if task.fillers else ()
            filled = [_add_minima(losses, one.losses, task.gap)[: len(losses)] for one in fillers]
            self._lows.append(_RangeMinimum(np.stack([losses, *filled])))
        # [k][kind]: how many nodes a run can take
        self._lengths = [
            np.array([0, *(len(one.losses) - 1 for one in fillers)]) for fillers in task.fillers
        ]
        # [j][d]: what the trainers before j can use at most
        self._most = np.zeros((len(menus) + 1, n_classes + len(task.dividing)), dtype=np.int64)
        for j, menu in enumerate(menus):
            self._most[j + 1] = self._most[j] + menu.uses.max(axis=0)
        # [k]: classes k, k+1, ... as one, by the nodes left to their own trainers
        self._pools = [np.zeros(1)]
        for losses in reversed(self._own if menus else []):
            self._pools.append(_add_minima(losses, self._pools[-1], task.gap))
        self._pools.reverse()
        # [j]: all classes as one, with the trainers before j
        together = [self._pools[0]]
        for menu in menus:
            together.append(_with_menu(together[-1], menu))
        self._together = together
        # For runs that may take some of the nodes left
        self._together_lows = [_RangeMinimum(one[None]) for one in together]
        self._pool_lows = [_RangeMinimum(one[None]) for one in self._pools]

    def losses(self, used: IntArray, lost: FloatArray, stage: int, inner: IntArray) -> FloatArray:
        """Losses so far, and the least that is to come; inf: does not fit."""
        n_classes, n_sets = len(self._counts), len(self._dividing)
        left = self._counts - used[:, :n_classes]
        pots = used[:, n_classes : n_classes + n_sets]
        total = left.sum(axis=1) - pots.sum(axis=1) + used[:, n_classes + n_sets :].sum(axis=1)
        fits = (left >= 0).all(axis=1) & (total >= 0)
        left, total = np.maximum(left, 0), np.maximum(total, 0)
        kinds = [kinds_of(inner, k) for k in range(n_classes if self._fillers else 0)]
        closed = max(-stage, 0)
        together, lows = self._together[max(stage, 0)], self._together_lows[max(stage, 0)]
        if closed:
            together, lows = self._pools[closed], self._pool_lows[closed]
            total = np.maximum(total - left[:, :closed].sum(axis=1), 0)
        if kinds and closed < n_classes:
            growth = np.add.reduce([self._lengths[k][kinds[k]] for k in range(closed, n_classes)])
            least = lows.between(np.maximum(total - growth, 0), total)
        else:
            least = together[total]
        if closed:
            for k in range(closed):
                least = least + self._lows[k].between(
                    left[:, k], left[:, k], kinds[k] if kinds else 0
                )
        else:
            least = np.maximum(least, self._apart(left, pots, stage, kinds))
        return np.where(fits, lost + least, np.inf)

    def _apart(
        self, left: IntArray, pots: IntArray, stage: int, kinds: Sequence[IntArray]
    ) -> FloatArray:
        """Each class by itself: it loses what suits it best of what may be left to it."""
        to_come = self._most[stage][: left.shape[1]] + np.zeros_like(left)
        for i, classes in enumerate(self._dividing):
            divided = pots[:, i] + self._most[stage][left.shape[1] + i]
            for k in classes:
                to_come[:, k] += divided
        least = np.zeros(len(left))
        lowest = np.maximum(left - to_come, 0)
        for k, lows in enumerate(self._lows):
            least += lows.between(lowest[:, k], left[:, k], kinds[k] if kinds else 0)
        return least


def kinds_of(inner: IntArray, k: int | IntArray) -> IntArray:
    """The kind of run a class has; 0: none."""
    kinds: IntArray = (inner >> (KIND_BITS * k)) & ((1 << KIND_BITS) - 1)
    return kinds


def _add_minima(one: FloatArray, other: FloatArray, gap: float) -> FloatArray:
    """Least sum of both, by the sum of their indices; inf where more than the gap is lost."""
    low, low_of_other = np.flatnonzero(one <= gap), np.flatnonzero(other <= gap)
    if len(low) > len(low_of_other):
        one, other, low, low_of_other = other, one, low_of_other, low
    least = np.full(len(one) + len(other) - 1, np.inf)
    if not len(low):
        return least
    first = int(low_of_other[0])
    other = other[first : int(low_of_other[-1]) + 1]
    for i in low.tolist():
        part = least[first + i : first + i + len(other)]
        np.minimum(part, other + one[i], out=part)
    return least


def _with_menu(losses: FloatArray, menu: Menu) -> FloatArray:
    """The same with one trainer more, whatever class its nodes are of."""
    by_size = np.full(int(menu.sizes.max()) + 1, np.inf)
    np.minimum.at(by_size, menu.sizes, menu.losses)
    least = np.full(len(losses), np.inf)
    for size in np.flatnonzero(by_size < np.inf).tolist():
        part = least[size:]
        np.minimum(part, losses[: len(part)] + by_size[size], out=part)
    return least


class _RangeMinimum:
    """Minima over any range of rows, from the minima over power-of-two ranges."""

    def __init__(self, rows: FloatArray) -> None:
        size = rows.shape[1]
        tables = [rows]
        while 2 << (len(tables) - 1) <= size:
            half = 1 << (len(tables) - 1)
            last = tables[-1]
            table = last.copy()
            table[:, : size - half] = np.minimum(last[:, : size - half], last[:, half:])
            tables.append(table)
        self._tables = np.stack(tables)
        self._power = np.frexp(np.arange(size + 1))[1].astype(np.int64) - 1

    def between(self, first: IntArray, last: IntArray, row: IntArray | int = 0) -> FloatArray:
        """Minimum over first..last, both included, of one of the rows."""
        power = self._power[last - first + 1]
        minima: FloatArray = np.minimum(
            self._tables[power, row, first], self._tables[power, row, last + 1 - (1 << power)]
        )
        return minima
