"""The price of a node: at it, what all trainers would take by themselves fills the pool.

Takes every trainer's candidate sizes and their values, returns the price and what the
trainers take on either side of it. Called by ``milp.exact.columns`` for one class of nodes.

Any price p >= 0 bounds the optimum by sum_j max_n (v_j(n) - p n) + p N. The best bound
is where the tangents of a too cheap and a too dear price meet, and there again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from milp.tables import FloatArray

RELATIVE_STEP = 1e-12  # of the values: what the bound gains below it is float noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The price and what the trainers take at it."""

    price: float
    reduced: FloatArray  # [j, m]: value less price times size, of the candidates
    spots: NDArray[np.intp]  # [j]: which of all candidates has the most of it


def find_price(sizes: FloatArray, values: FloatArray, capacity: int) -> Priced:
    """Minimise the bound over prices; ``sizes`` and ``values`` are of the candidates."""
    both = np.empty(sizes.shape, dtype=np.complex128)  # summed together: value + i size
    both.real, both.imag = values, sizes
    starts = np.arange(0, sizes.size, sizes.shape[1])
    reduced = np.empty_like(sizes)

    def take(price: float) -> tuple[NDArray[np.intp], float, float]:
        np.multiply(sizes, price, out=reduced)
        np.subtract(values, reduced, out=reduced)
        picks = reduced.argmax(axis=1)
        picks += starts
        total = complex(both.take(picks).sum())
        return picks, total.real, total.imag

    price, over = 0.0, take(0.0)
    point = over
    fits = over if over[2] <= capacity else (starts, float(values[:, 0].sum()), 0.0)
    while fits is not over:
        price = max((over[1] - fits[1]) / (over[2] - fits[2]), 0.0)
        point = take(price)
        gain = (point[1] - price * point[2]) - (fits[1] - price * fits[2])
        is_noise = gain <= RELATIVE_STEP * (abs(point[1]) + abs(fits[1]))
        if is_noise:
            break
        if point[2] > capacity:
            over = point
        else:
            fits = point
    return Priced(price=price, reduced=reduced, spots=point[0])
