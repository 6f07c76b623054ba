"""Prices of a node by class that minimise the dual bound of the allocation problem.

Takes what all trainers would take by themselves at given prices, returns one price per
class, in objective units times seconds per node. Called by the solver for several
classes. At prices p no allocation is worth more than
sum_j max(v_j(n) - what n nodes cost at p) + sum_k p_k N_k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from milp.tables import FloatArray

MAX_ROUNDS = 200  # 5 to 30 are usual; stopping early only costs time later
RELATIVE_STEP = 1e-11  # of the bound: gains below it are float noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What all trainers together take at some prices."""

    value: float
    usage: FloatArray  # [k]: nodes of class k


def find_prices(
    take: Callable[[FloatArray], Taken],
    at_nothing: float,
    counts: Sequence[int],
    first_price: float,
) -> FloatArray:
    """Minimise the bound over prices >= 0.

    By the cutting planes' other side: mix what was taken at earlier prices as well as
    the counts allow; the prices of the counts in that mix are where to look next.
    ``at_nothing`` is the value when nobody takes a node.
    """
    capacity = np.asarray(counts, dtype=np.float64)
    mix = _Mix(capacity, at_nothing)
    prices = np.full(len(counts), first_price)
    best, lowest = prices, np.inf
    for _ in range(MAX_ROUNDS):
        taken = take(prices)
        bound = taken.value + float(prices @ (capacity - taken.usage))
        if bound < lowest:
            best, lowest = prices, bound
        mix.add(taken)
        prices, mixed = mix.prices()
        if lowest - mixed <= RELATIVE_STEP * (abs(lowest) + abs(at_nothing)):
            break
    return best


class _Mix:
    """The best mix (shares sum to 1) of known answers within the counts: a small LP.

    Revised simplex: one row per class and one for the shares. The first columns are
    the idle nodes of each class and the answer that uses none.
    """

    def __init__(self, capacity: FloatArray, at_nothing: float) -> None:
        n_classes = len(capacity)
        self._scale = np.append(np.maximum(capacity, 1.0), 1.0)
        self._right = np.append(capacity, 1.0) / self._scale
        self._columns = np.eye(n_classes + 1)
        self._values = np.append(np.zeros(n_classes), at_nothing)
        self._basis = np.arange(n_classes + 1)

    def add(self, taken: Taken) -> None:
        """Let the mix use one more answer."""
        column = np.append(taken.usage, 1.0) / self._scale
        self._columns = np.column_stack([self._columns, column])
        self._values = np.append(self._values, taken.value)

    def prices(self) -> tuple[FloatArray, float]:
        """Prices of the counts in the best mix, and its value."""
        for _ in range(10 * len(self._values)):
            inverse = np.linalg.inv(self._columns[:, self._basis])
            amounts = inverse @ self._right
            duals = self._values[self._basis] @ inverse
            gains = self._values - duals @ self._columns
            entering = int(gains.argmax())
            if gains[entering] <= RELATIVE_STEP * np.abs(self._values).max():
                break
            direction = inverse @ self._columns[:, entering]
            rows = np.flatnonzero(direction > 1e-12)
            steps = np.maximum(amounts[rows], 0.0) / direction[rows]
            self._basis[rows[steps.argmin()]] = entering
        value = float(self._values[self._basis] @ amounts)
        return np.maximum(duals[:-1] / self._scale[:-1], 0.0), value
