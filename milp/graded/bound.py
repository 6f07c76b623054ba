"""Bounds on a part of the choices, by prices of the grades; rows that cannot matter go.

Takes Rows and prices to begin with, returns the part with the least bound it finds.
Called by the graded search. At any prices, the dynamic program over sizes bounds what is
possible, and the transport problem at the sizes it picks is possible. Rows that lose more
against the prices than lies between the two are out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from milp.graded.best import Best
from milp.graded.rows import Rows, used_at, worth_at
from milp.graded.sizes import Group, fit_sizes, price_of_size, size_groups
from milp.tables import FloatArray, IntArray

PATIENCE = 2  # rounds without a better bound before the steps get shorter
SHORTER = 0.6
CLOSING = 0.1  # of the distance to the best, in 2 * PATIENCE rounds: less is no progress
BLENDS = (0.7, 0.4, 1.0)  # how far to go to the prices of the best map


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the choices and what is known of it."""

    rows: Rows
    bound: float  # nothing in it is worth more; -inf: it holds nothing to be looked for
    prices: FloatArray  # [g]: on top of what any node costs
    node_price: FloatArray  # [j]: on top of that, of any node trainer j may have
    low: IntArray  # [j]: least and greatest size picked at any of the prices
    high: IntArray


class Bounding:
    """One part being bounded; ``run`` is called once."""

    def __init__(self, rows: Rows, prices: FloatArray, best: Best) -> None:
        self._best, self._counts = best, best.counts
        self._n_trainers = len(best.current)
        self._even = 1 / np.sqrt(best.counts)  # small grades move less at each step
        self._part = Part(
            rows=rows,
            bound=np.inf,
            prices=prices,
            node_price=np.zeros(self._n_trainers),
            low=np.full(self._n_trainers, np.iinfo(np.int64).max),
            high=np.zeros(self._n_trainers, dtype=np.int64),
        )
        self.cells = 0  # looked at
        self.rounds = 0

    def run(self, rounds: int) -> Part:
        """Descend for so many rounds, then look near the prices of the best map."""
        if self._descend(rounds):
            self._blend()
        part = self._part
        if len(part.rows.size) == self._n_trainers:
            self._best.try_rows(part.rows)
            return replace(part, bound=-np.inf)
        return replace(part, bound=-np.inf) if self._best.beats(part.bound) else part

    def _is_open(self) -> bool:
        rows = self._part.rows
        return len(rows.size) > self._n_trainers and not self._best.beats(self._part.bound)

    def _descend(self, rounds: int) -> bool:
        """Polyak's subgradient steps towards the best value; whether the part is still open."""
        prices, step, since_better = self._part.prices, 1.0, 0
        bounds: list[float] = []
        for _ in range(rounds):
            before = self._part.bound
            looked = self._look(prices)
            if looked is None or not self._is_open():
                return False
            bound, over = looked
            bounds.append(self._part.bound)
            since_better = 0 if bound < before else since_better + 1
            if since_better == PATIENCE:
                step, since_better = step * SHORTER, 0
            moves = np.where((prices > 0) | (over > 0), over, 0) * self._even
            norm = float(moves @ over)
            if norm <= 0.0 or self._has_stalled(bounds):
                break
            prices = np.maximum(prices + step * (bound - self._best.value) / norm * moves, 0.0)
        return True

    def _has_stalled(self, bounds: list[float]) -> bool:
        if len(bounds) <= 2 * PATIENCE:
            return False
        gained = bounds[-1 - 2 * PATIENCE] - bounds[-1]
        return gained < CLOSING * (bounds[-1] - self._best.value)

    def _blend(self) -> None:
        """Prices between the best bound's and the best map's, while that improves either."""
        has_gained = True
        while has_gained:
            has_gained = False
            for share in BLENDS:
                bound, value = self._part.bound, self._best.value
                own = self._part.prices - self._part.prices.min()
                if self._look(share * self._best.map.prices + (1 - share) * own) is None:
                    return
                if not self._is_open():
                    return
                gained = bound - self._part.bound
                if self._best.value > value or gained > CLOSING * (bound - value):
                    has_gained = True
                    break

    def _look(self, prices: FloatArray) -> tuple[float, IntArray] | None:
        """Bound at the prices, and by grade the nodes taken beyond what there is.

        None: no choice of rows fits.
        """
        rows = self._part.rows
        self.rounds += 1
        self.cells += rows.profit.size
        worth = worth_at(rows, prices)
        groups = size_groups(rows, self._best.class_of, self._counts)
        fitted = self._fit(groups, worth)
        if fitted is None:
            self._part = replace(self._part, bound=-np.inf)
            return None
        bound, chosen = fitted[0] + float(prices @ self._counts), rows.keep(fitted[1])
        if self._best.try_rows(chosen) is None:
            self._best.try_near(rows, worth - self._part.node_price[rows.trainer] * rows.size)
        low = np.minimum(self._part.low, chosen.size)
        high = np.maximum(self._part.high, chosen.size)
        self._part = replace(self._part, low=low, high=high)
        if bound < self._part.bound:
            self._part = replace(self._part, bound=bound, prices=prices)
            self._drop_rows(groups, worth)
        return bound, used_at(chosen, prices).sum(axis=0) - self._counts

    def _fit(self, groups: list[Group], worth: FloatArray) -> tuple[float, IntArray] | None:
        """Worth and indices of the best rows whose sizes fit; None: none do."""
        value, picks = 0.0, []
        for rows, index, capacity in groups:
            current = self._best.current[rows.trainer[rows.starts()]]
            found = fit_sizes(rows, worth[index], capacity, current, self._best.tolerance)
            if found is None:
                return None
            value += found[0]
            picks.append(index[found[1]])
        return value, np.sort(np.concatenate(picks))

    def _drop_rows(self, groups: list[Group], worth: FloatArray) -> None:
        """Keep the rows that can be part of something better at the part's prices."""
        rows, prices = self._part.rows, self._part.prices
        node_price = np.zeros(self._n_trainers)
        bound = float(prices @ self._counts)
        for few, index, capacity in groups:
            price = price_of_size(few, worth[index], capacity)
            node_price[few.trainer] = price
            bound += price * capacity
        reduced = worth - node_price[rows.trainer] * rows.size
        most = np.maximum.reduceat(reduced, rows.starts())
        spare = max(bound + float(most.sum()) - self._best.value, 0.0) + self._best.tolerance
        survives = most[rows.trainer] - reduced <= spare
        self._part = replace(self._part, rows=rows.keep(survives), node_price=node_price)
