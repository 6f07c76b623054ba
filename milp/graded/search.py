"""The best rows of trainers whose nodes earn unequally: bound, then branch on sizes.

Takes Rows and the nodes by grade, returns one row per trainer with its map of grades, and
how far the optimum can be. Called by ``solve_graded``. Work is counted, not timed: the
same problem always ends with the same answer.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, replace

import numpy as np

from milp.graded.best import Best
from milp.graded.bound import Bounding, Part
from milp.graded.prices import bound_at, market_prices, thin_out
from milp.graded.rows import Rows
from milp.graded.sizes import fit_sizes
from milp.graded.transport import Transport
from milp.tables import FloatArray, IntArray

ROOT_ROUNDS, BRANCH_ROUNDS = 12, 4
# Cells looked at while branching; a round counts so many more, and more by trainer.
MAX_WORK, ROUND_CELLS, TRAINER_CELLS = 400_000, 500, 900
FEW_CHOICES = 16  # are tried one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best rows found."""

    rows: Rows  # one per trainer
    map: Transport
    bound: float  # no choice of rows is worth more
    prices: FloatArray  # [g]: of a node more, where the bound was least


def search(
    rows: Rows,
    *,
    counts: IntArray,
    seconds: FloatArray,
    class_of: IntArray,
    current: IntArray,
    tolerance: float,
) -> Found:
    """Search until the best is proven or the work is done."""
    nothing = rows.keep(rows.starts())  # size 0 comes first and fits always
    best = Best(nothing, counts=counts, class_of=class_of, current=current, tolerance=tolerance)
    last = np.flatnonzero((rows.size == current[rows.trainer]) | (rows.size == 0))
    is_last = np.append(np.diff(rows.trainer[last]) > 0, [True])
    best.try_rows(rows.keep(last[is_last]))  # as it is; size 0 where that is not legal
    root = Bounding(rows, _first_prices(rows, seconds, best), best).run(ROOT_ROUNDS)
    bound = _branch(root, best)
    return Found(
        rows=best.rows,
        map=best.map,
        bound=max(bound, best.value),
        prices=root.prices + root.node_price.max(initial=0.0),
    )


def _first_prices(rows: Rows, seconds: FloatArray, best: Best) -> FloatArray:
    """The better of what clears the market and of what fits the sizes it would take."""
    total = np.maximum(rows.limit.sum(axis=1), 1)
    mean = (np.maximum(rows.profit, 0.0) * rows.limit).sum(axis=1) / total
    worth = rows.constant + rows.need * mean
    picked = fit_sizes(rows, worth, int(best.counts.sum()), best.current, best.tolerance)
    found = None if picked is None else best.try_rows(rows.keep(picked[1]))
    few = thin_out(rows, best.current)
    prices = market_prices(few, best.counts, seconds, best.class_of)
    if found is None:
        return prices
    bounds = [bound_at(few, best.counts, p)[0] for p in (prices, found.prices)]
    return prices if bounds[0] < bounds[1] else found.prices


def _branch(root: Part, best: Best) -> float:
    """Split what may hold something better, most promising first; returns the bound."""
    order = itertools.count()
    heap = [(-root.bound, next(order), root)]
    work = 0
    while heap:
        bound = -heap[0][0]
        if best.beats(bound) or work > MAX_WORK:
            return bound
        part = heapq.heappop(heap)[-1]
        for rows in _split(part):
            if _try_few(rows, best):
                work += FEW_CHOICES * ROUND_CELLS
                continue
            bounding = Bounding(rows, part.prices, best)
            child = bounding.run(BRANCH_ROUNDS)
            work += bounding.cells
            work += bounding.rounds * (ROUND_CELLS + TRAINER_CELLS * len(best.current))
            child = replace(child, bound=min(child.bound, part.bound))
            if not best.beats(child.bound):
                heapq.heappush(heap, (-child.bound, next(order), child))
    return best.value


def _try_few(rows: Rows, best: Best) -> bool:
    """Try every choice where there are few; whether that was so."""
    starts = rows.starts()
    n_rows = np.diff(starts, append=len(rows.size))
    if np.log(n_rows).sum() > np.log(FEW_CHOICES) + 1e-9:
        return False
    of_trainer = [range(start, start + n) for start, n in zip(starts, n_rows, strict=True)]
    for choice in itertools.product(*of_trainer):
        best.try_rows(rows.keep(np.array(choice)))
    return True


def _split(part: Part) -> list[Rows]:
    """Two halves by what the trainer least agreed upon does.

    First by class: sizes of trainers bound to one class are bounded much better.
    """
    rows = part.rows
    runs = rows.size > 0
    starts = rows.starts()
    lowest = np.minimum.reduceat(np.where(runs, rows.menu, rows.menu.max()), starts)
    highest = np.maximum.reduceat(np.where(runs, rows.menu, 0), starts)
    n_rows = np.bincount(rows.trainer, minlength=len(part.low))
    spread = part.high - part.low
    by_class = (lowest < highest).any()
    is_candidate = lowest < highest if by_class else n_rows > 1
    j = int(np.lexsort((n_rows, np.where(is_candidate, spread, -1)))[-1])
    of_j = rows.trainer == j
    if by_class:
        is_low = runs & (rows.menu == lowest[j])
    else:
        sizes = rows.size[of_j]
        middle = (part.low[j] + part.high[j]) // 2
        is_low = rows.size <= np.clip(middle, sizes.min(), sizes.max() - 1)
    return [rows.keep(~of_j | is_low), rows.keep(~of_j | ~is_low)]
