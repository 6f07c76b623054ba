"""The best sizes for one class of nodes, exactly and fast.

Takes the trainers' columns, returns sizes, their value and that of one node more. Called
by ``milp.solve``; the simulator and the daemon may call it on columns of their own.
Small problems become one table, of which few sizes matter as a rule (``few``). Steps for the
others: (1) the price of a node, which bounds what any sizes are worth; (2) if the sizes
that are best at the price fill the pool, the best of these; (3) else a search among the
sizes that lose little against the price, with what may be lost doubled until the answer
is proven: all that was left out loses more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from milp.exact.column_data import TOLERANCE, Columns, build_columns, lay_out
from milp.exact.core import CoreChoice, solve_core
from milp.exact.dual import solve_pool_dense
from milp.exact.few import solve_few
from milp.exact.near import Near, Setting, is_small
from milp.exact.price import find_price
from milp.exact.ties import NEVER, choose_reachable, choose_tied, reachable
from milp.exact.worths import Worths, tabulate
from milp.tables import BoolArray, FloatArray, IntArray

__all__ = ["Columns", "SizesAnswer", "build_columns", "lay_out", "solve_sizes", "solve_sizes_dense"]

FIRST_GAP = 0.5  # of the price; most answers lose less than that against the bound


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesAnswer:
    """Best sizes; ties: fewest rescales, then earlier trainers get more."""

    sizes: IntArray
    value: float
    value_of_one_more: float  # the best value were there one node more
    undecided: int  # trainers the price did not settle


def solve_sizes(columns: Columns | Worths) -> SizesAnswer:
    """Maximise the sum of values under the capacity."""
    if not len(columns.present):
        nothing = np.zeros(0, dtype=np.int64)
        return SizesAnswer(sizes=nothing, value=0.0, value_of_one_more=0.0, undecided=0)
    if isinstance(columns, Worths):
        return _solve_table(columns, columns.find_price())
    setting = _set_price(columns)
    if is_small(columns):
        return _solve_table(tabulate(columns, setting.tolerance), setting.price)
    bound = float(setting.best.sum()) + setting.price * columns.capacity
    gap = setting.price * FIRST_GAP
    near = Near(setting, gap)
    setting, sizes, fills_larger = _among_ties(setting, near)
    loss, more = 0.0, bound + setting.price
    while sizes is None or not fills_larger:
        found = near.search(setting)
        if sizes is None:
            sizes, loss = found.sizes, found.loss
        if not fills_larger and found.has_larger:
            fills_larger, more = True, more - found.loss_of_larger
        gap = 1.25 * near.least if near.least > gap else max(2 * gap, setting.price * FIRST_GAP)
        if sizes is None or not fills_larger:
            near = Near(setting, gap)
    return SizesAnswer(
        sizes=sizes.astype(np.int64),
        value=bound - loss,
        value_of_one_more=max(more, bound - loss),
        undecided=len(near.rows),
    )


def solve_sizes_dense(columns: Columns) -> SizesAnswer:
    """The same from the dense dynamic program alone: slower, and nothing to reduce wrongly."""
    tables = columns.tables(np.arange(len(columns.present)))
    magnitude = np.abs(columns.candidate_values()).max(axis=1, initial=0.0)
    found = solve_pool_dense(
        tables,
        columns.present.astype(np.int64),
        columns.capacity,
        TOLERANCE * float(magnitude.sum()),
    )
    return SizesAnswer(
        sizes=found.sizes,
        value=found.value,
        value_of_one_more=found.value_of_one_more,
        undecided=found.undecided,
    )


def _set_price(columns: Columns) -> Setting:
    values = columns.candidate_values()
    tolerance = TOLERANCE * float(np.abs(values).max(axis=1).sum())
    values[columns.barred] = -np.inf
    at = find_price(columns.candidates, values, columns.capacity)
    picks = columns.candidates.take(at.spots)
    return Setting(
        columns=columns,
        price=at.price,
        reduced=at.reduced,
        best=at.reduced.take(at.spots),
        spots=at.spots,
        picks=picks,
        left=columns.capacity - int(picks.sum()),
        tolerance=tolerance,
    )


def _solve_table(worths: Worths, price: float) -> SizesAnswer:
    """Where the values of all sizes are at hand: few of them matter, or the program decides."""
    few = solve_few(worths, price)
    if few is not None:
        sizes, value, more = few
    else:
        setting = _price_worths(worths, price)
        near = Near(setting, price * FIRST_GAP)
        near.adapt(setting)
        while True:
            found = near.decide(setting)
            if found.sizes is not None and found.has_larger:
                break
            near.gap = 2 * near.gap + near.noise
        bound = float(setting.best.sum()) + price * worths.capacity
        sizes, value = found.sizes.astype(np.int64), bound - found.loss
        more = bound + price - found.loss_of_larger
    return SizesAnswer(
        sizes=sizes, value=value, value_of_one_more=max(more, value), undecided=len(sizes)
    )


def _price_worths(worths: Worths, price: float) -> Setting:
    allowed = worths.allowed
    n_rows, width = allowed.shape
    reduced = allowed - price * np.arange(width)
    best = reduced.max(axis=1)
    # Of sizes that are equally good the smallest: what is left over is filled best.
    picks = (reduced >= (best - worths.tolerance)[:, None]).argmax(axis=1)
    spots = picks + np.arange(0, n_rows * width, width)
    return Setting(
        columns=worths,
        price=price,
        reduced=reduced,
        best=best,
        spots=spots,
        picks=picks.astype(np.float64),
        left=worths.capacity - int(picks.sum()),
        tolerance=worths.tolerance,
    )


def _among_ties(setting: Setting, near: Near) -> tuple[Setting, FloatArray | None, bool]:
    """Sizes that are all best at the price and fill the pool, if there are any.

    Also whether others fill the pool with one node more. Where something is missing, the
    setting comes back with picks to search from: they leave few nodes.
    """
    columns = setting.columns
    # A price that is only noise is none: what is left over then loses nothing.
    is_free = setting.price * max(columns.capacity, 1) <= setting.tolerance
    is_best = near.losses <= setting.tolerance
    several = (is_best.sum(axis=1) > 1).nonzero()[0]
    if not len(several):
        return setting, setting.picks if is_free or setting.left == 0 else None, is_free
    rows, is_best = near.rows[several], is_best[several]
    left = setting.left + int(setting.picks[rows].sum())
    every, width = np.arange(len(rows)), is_best.shape[1]
    present = np.minimum(columns.present[rows], width - 1).astype(np.int64)
    can_stay = is_best[every, present] & (present == columns.present[rows])
    chosen, fills_larger = _choose(is_best, np.where(can_stay, present, NEVER), left, is_free)
    sizes = None
    if chosen is not None:
        sizes = setting.picks.copy()
        sizes[rows] = chosen
    if sizes is None or not fills_larger:
        tied, drift = _picks(is_best, present, can_stay, left, setting.tolerance)
        picks = setting.picks.copy()
        picks[rows] = tied
        setting = replace(
            setting, picks=picks, left=columns.capacity - int(picks.sum()), drift=drift
        )
    return setting, sizes, fills_larger


def _choose(
    is_best: BoolArray, current: IntArray, left: int, is_free: bool
) -> tuple[FloatArray | list[int] | None, bool]:
    """Choose among the sizes that are best at the price; see ``_among_ties``."""
    if not is_free and (current == NEVER).all():
        chosen = _in_order(is_best, left)
        if chosen.sum() == left and _in_order(is_best, left + 1).sum() == left + 1:
            return chosen, True
    sets, stays = [row.nonzero()[0].tolist() for row in is_best], current.tolist()
    best = choose_tied(sets, stays, left, is_exact=not is_free)
    if is_free:
        return best, True
    if left < -1:
        return None, False
    bits = reachable(sets, left + 1)
    if best is None and left >= 0 and bits[0] >> left & 1:
        best = _fewest_rescales(sets, stays, bits, left)
    return best, bool(bits[0] >> (left + 1) & 1)


def _fewest_rescales(
    sets: list[list[int]], current: list[int], bits: list[int], left: int
) -> list[int]:
    """Where the gaps within the sets matter: count the rescales, size by size."""
    if all(stay == NEVER for stay in current):
        return choose_reachable(sets, bits, left)
    choices = [
        CoreChoice(np.array(sizes), np.array([float(size != stay) for size in sizes]))
        for sizes, stay in zip(sets, current, strict=True)
    ]
    limit = float(len(sets))
    gaps = (limit + 0.5, limit + 0.5)
    found = solve_core(choices, left, 2 * limit + 2, gaps, 0.5).sizes
    if found is None:
        raise AssertionError("a total within reach was not reached")
    return found


def _picks(
    is_best: BoolArray, present: IntArray, can_stay: BoolArray, left: int, tolerance: float
) -> tuple[IntArray, float]:
    """Sizes to search from: they leave few nodes, and all else costs no less.

    Who rescales anyway comes first. Then those who could stay move, the longest way
    first, so that few do. What a rescale costs (a tolerance) is shared out over the nodes
    of the shortest way that was gone: with that on top of the price, nobody gains by
    going back. That is the second number: the loss of a node more.
    """
    sizes = np.where(can_stay, present, 0)
    rescaling = (~can_stay).nonzero()[0]
    rest = left - int(sizes.sum())
    if len(rescaling):
        sizes[rescaling] = _in_order(is_best[rescaling[::-1]], rest)[::-1]
        rest -= int(sizes[rescaling].sum())
    largest = is_best.shape[1] - 1 - is_best[:, ::-1].argmax(axis=1)
    ways = np.where(can_stay, largest - sizes, 0)
    if rest <= 0 or not ways.any() or (sizes < largest)[rescaling].any():
        return sizes, 0.0
    longest_first = len(ways) - 1 - (-ways[::-1]).argsort(kind="stable")
    gone = int(ways[longest_first].cumsum().searchsorted(rest, side="right"))
    moved = longest_first[:gone]
    sizes[moved] = largest[moved]
    shortest = int(ways[longest_first[gone]]) if gone < len(ways) else 0
    shortest = shortest or int(ways[moved[ways[moved] > 0][-1]])
    return sizes, -tolerance / shortest


def _in_order(is_best: BoolArray, total: int) -> FloatArray:
    """The first trainers their largest size, the others their smallest, one in between.

    Their sum is the total, if the sizes allow that; else something near it.
    """
    smallest = is_best.argmax(axis=1)
    largest = is_best.shape[1] - 1 - is_best[:, ::-1].argmax(axis=1)
    sums = (largest - smallest).cumsum()
    left = min(max(total - int(smallest.sum()), 0), int(sums[-1]))
    turn = int(sums.searchsorted(left))
    chosen: FloatArray = smallest.astype(np.float64)
    chosen[:turn] = largest[:turn]
    limit = int(smallest[turn]) + left - (int(sums[turn - 1]) if turn else 0)
    chosen[turn] = limit - int(is_best[turn, limit::-1].argmax())
    return chosen
