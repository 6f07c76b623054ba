"""One pool, exactly: a price per node rules out most sizes, and the others are searched.

Takes one matrix of values by trainer and size, returns the best sizes and what one node
more is worth; called by the solvers per pool. Everything here is one argument:

* At any price p >= 0 of a node trainer j alone could have b_j = max_n (v_j(n) - p n), and
  size n loses l_j(n) = b_j - v_j(n) + p n >= 0 against that. For sizes that use at most N
  nodes   sum_j v_j(n_j) = sum_j b_j + p N - [sum_j l_j(n_j) + p (N - sum_j n_j)],
  so the best sizes are those that lose least, where a node left over loses p.
* No loss is negative. If some sizes lose at most g together, then so do the best ones, and
  none of these loses more than g by itself: all other sizes of a trainer are out.
* So: take any g, search what is left; if that loses at most g it is the optimum, proven.
  Else g was too small, and grows. A good price only makes g small, and the search short:
  it is where the bound sum_j b_j + p N is least, found by intersecting tangents.

Ties: fewest rescales, then earlier trainers get more. A size other than C_j loses a
``tolerance`` more, which is more than float noise and less than any preference; of what
then loses the same the search keeps the larger sizes of earlier trainers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from milp.exact.search import Near, gap_nearby, search_few, search_window
from milp.tables import BoolArray, FloatArray, IntArray

FEW_CELLS = 1 << 12  # values: beyond, small gaps are tried before that of an answer nearby
FIRST_GAP = 0.5  # of the price; most answers lose less than that
GROWTH = 4
RELATIVE_STEP = 1e-12  # of the values: what the bound gains below it is float noise
NO_VALUE = 1e-200  # a tolerance where every value is 0: any tells rescales apart


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswer:
    """Best sizes of one pool; values in objective units times seconds."""

    sizes: IntArray
    value: float
    value_of_one_more: float  # value were there one node more


def solve_pool(
    allowed: FloatArray,
    current: IntArray,
    capacity: int,
    tolerance: float,
    price: float | None = None,
    *,
    is_dense: bool = False,
) -> PoolAnswer:
    """Maximise the sum of values under the capacity, in nodes.

    ``allowed[j, n]`` is -inf where trainer j may not have size n; size 0 always is.
    ``price`` may be known already; at any price >= 0 the answer is the same. ``is_dense``: every
    size is searched, which is slower, and leaves nothing out wrongly.
    """
    if is_dense:
        price = 0.0
    elif price is None:
        price = find_price(allowed, capacity)
    if not len(allowed):
        return PoolAnswer(sizes=np.zeros(0, dtype=np.int64), value=0.0, value_of_one_more=0.0)
    tolerance = tolerance or NO_VALUE
    columns = np.arange(allowed.shape[1])
    losses = price * columns - allowed
    losses -= losses.min(axis=1)[:, None]
    # Of sizes that are equally good the smallest: what is left over is filled best.
    sizes = (losses <= tolerance).argmax(axis=1)
    nodes_left = capacity - int(sizes.sum())
    enough = math.inf  # a gap that some answer is within
    noise = tolerance * (len(sizes) + 2)  # a rescale more loses a tolerance more
    if is_dense:
        gap = float(losses.max(where=np.isfinite(losses), initial=0.0)) * len(sizes)
    else:
        enough = gap_nearby(losses, columns - sizes[:, None], price, nodes_left, tolerance)
        gap = min(enough, price * FIRST_GAP) if losses.size > FEW_CELLS else enough
    while True:
        gap += noise
        within = losses <= gap
        several = (within.sum(axis=1) > 1).nonzero()[0]  # trainers to be decided
        capacity = nodes_left + int(sizes[several].sum())
        near = _near(losses, within, several, current, capacity, price, gap, tolerance)
        picks = None if is_dense else search_few(near)
        if picks is None:
            picks = search_window(near)
        if picks is not None:
            break
        larger_gap = max(gap * GROWTH, price * FIRST_GAP)
        # Not more than is needed: what is searched grows faster than the gap.
        if gap < enough:
            larger_gap = min(larger_gap, enough)
        gap = larger_gap
    larger = sizes.copy()
    sizes[several], larger[several] = picks
    value = _value_of(sizes, allowed)
    value_of_one_more = max(value, _value_of(larger, allowed))
    return PoolAnswer(sizes=sizes, value=value, value_of_one_more=value_of_one_more)


def _near(
    losses: FloatArray,
    within: BoolArray,
    several: IntArray,
    current: IntArray,
    capacity: int,
    price: float,
    gap: float,
    tolerance: float,
) -> Near:
    """Return the sizes within the gap of the trainers that have several."""
    rows, sizes = within[several].nonzero()
    owners = several[rows]
    return Near(
        n_trainers=len(several),
        rows=rows,
        sizes=sizes,
        losses=losses[owners, sizes] + tolerance * (sizes != current[owners]),
        capacity=capacity,
        price=price,
        gap=gap,
        noise=tolerance / 4,
    )


def _value_of(sizes: IntArray, allowed: FloatArray) -> float:
    return math.fsum(allowed[np.arange(len(sizes)), sizes].tolist())


def find_price(allowed: FloatArray, capacity: int) -> float:
    """The price at which the bound is least: where the tangents of two prices meet.

    One is too cheap, the trainers by themselves take more than there is, the other too dear.
    """
    columns, starts = np.arange(allowed.shape[1]), np.arange(0, allowed.size, allowed.shape[1])

    def take(price: float) -> tuple[float, int]:
        """Return the value of what all trainers take at the price, and the number of nodes."""
        picks = (allowed - price * columns).argmax(axis=1)
        return float(allowed.take(picks + starts).sum()), int(picks.sum())

    over, over_nodes = take(0.0)
    if over_nodes <= capacity:
        return 0.0
    fits, fits_nodes = float(allowed[:, 0].sum()), 0
    while True:
        # Float noise in a price can cost time but never the optimum.
        price = max((over - fits) / (over_nodes - fits_nodes), 0.0)
        value, nodes = take(price)
        gain = (value - price * nodes) - (fits - price * fits_nodes)
        if gain <= RELATIVE_STEP * (abs(value) + abs(fits)) or nodes in {over_nodes, fits_nodes}:
            return price
        if nodes > capacity:
            over, over_nodes = value, nodes
        else:
            fits, fits_nodes = value, nodes
