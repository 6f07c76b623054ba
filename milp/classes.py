"""Two or three node classes, exactly: each trainer takes nodes of one class or none.

Takes Options with several classes, returns class and size per trainer and the values
with one node more; called by the solver when the pool is not one. First the prices of
a node of each class (any prices give a valid bound, these the best); then a dynamic
program over used-node vectors on what loses little against the prices, with the loss
allowed doubled until the answer is proven: all it left out loses more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from milp.classing import improve_classing
from milp.dual import solve_pool
from milp.options import Options
from milp.packing import pack
from milp.prices import find_prices
from milp.tables import FloatArray, IntArray
from milp.vector_search import Menu, TooManyStatesError, search

FIRST_GAP = 1 / 32  # of the highest price; most answers lose less than one node's worth


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassesAnswer:
    """Best class and size per trainer."""

    classes: IntArray  # 0 where the size is 0
    sizes: IntArray
    price: float  # of a node of the dearest class
    gap: float  # the optimum is worth at most this much more; 0.0: it is this


def solve_classes(options: Options) -> ClassesAnswer:
    """Maximise over classes and sizes; ties: rescales, then sizes in FCFS order."""
    prices = find_prices(options.allowed, options.counts)
    price = float(prices.max())
    counts = np.asarray(options.counts)
    together = _solve_together(options)
    if together is not None:
        classes, sizes = together
        return ClassesAnswer(classes=classes, sizes=sizes, price=price, gap=0.0)
    reduced = options.allowed - prices[:, None, None] * np.arange(options.allowed.shape[2])
    best = reduced.max(axis=(0, 2))
    bound = float(best.sum() + prices @ counts)
    gap = max(price * FIRST_GAP, 4 * options.tolerance)
    proven_loss = 0.0  # no answer loses less than this
    fallback: ClassesAnswer | None = None
    while True:
        menus = [_menu(options, reduced, best, gap, j) for j in range(len(best))]
        try:
            found = search(menus, counts, prices, gap=gap, tolerance=options.tolerance)
        except TooManyStatesError:
            if fallback is not None:
                return fallback
            fallback = _fall_back(options, prices, bound - proven_loss)
            known = bound - _value(options, fallback) + 4 * options.tolerance
            if known >= gap:
                return fallback
            gap = known  # the best loses no more than the fallback does
            continue
        # All that was left out loses more than the gap.
        if found is not None and found.loss <= gap - 2 * options.tolerance:
            return _answer(menus, found.picks, price)
        proven_loss, gap = gap, gap * 2


def _fall_back(options: Options, prices: FloatArray, bound: float) -> ClassesAnswer:
    """The better of a quick good answer and of changing nothing, with its gap."""
    classes, sizes = improve_classing(options, prices)
    quick = ClassesAnswer(classes=classes, sizes=sizes, price=float(prices.max()), gap=0.0)
    best = max(quick, _unchanged(options, quick.price), key=lambda one: _value(options, one))
    gap = bound - _value(options, best)
    return replace(best, gap=gap if gap > 8 * options.tolerance else 0.0)


def _answer(menus: Sequence[Menu], picks: Sequence[int], price: float) -> ClassesAnswer:
    pairs = list(zip(menus, picks, strict=True))
    return ClassesAnswer(
        classes=np.array([menu.classes[pick] for menu, pick in pairs], dtype=np.int64),
        sizes=np.array([menu.sizes[pick] for menu, pick in pairs], dtype=np.int64),
        price=price,
        gap=0.0,
    )


def _unchanged(options: Options, price: float) -> ClassesAnswer:
    """The current sizes where they are legal, 0 elsewhere: always feasible."""
    n_trainers = len(options.current)
    columns = np.minimum(options.current, options.allowed.shape[2] - 1)
    legal = np.isfinite(options.allowed[:, np.arange(n_trainers), columns])
    legal &= columns == options.current
    return ClassesAnswer(
        classes=legal.argmax(axis=0),
        sizes=np.where(legal.any(axis=0), options.current, 0),
        price=price,
        gap=np.inf,
    )


def _value(options: Options, answer: ClassesAnswer) -> float:
    return float(options.values[np.arange(len(answer.sizes)), answer.sizes].sum())


def _solve_together(options: Options) -> tuple[IntArray, IntArray] | None:
    """The best sizes as if the classes were one pool, if they fit the classes.

    That pool allows everything the classes allow, so what is best there and fits here
    is best here, ties included.
    """
    answer = solve_pool(
        options.allowed.max(axis=0), options.current, sum(options.counts), options.tolerance
    )
    rows = np.arange(len(answer.sizes))
    may_take = np.isfinite(options.allowed[:, rows, answer.sizes])
    classes = pack(answer.sizes, may_take, options.counts)
    return None if classes is None else (np.asarray(classes), answer.sizes)


def _menu(options: Options, reduced: FloatArray, best: FloatArray, gap: float, j: int) -> Menu:
    losses = best[j] - reduced[:, j]
    classes, sizes = np.nonzero((losses <= gap) & np.isfinite(losses))
    return Menu(
        classes=classes,
        sizes=sizes,
        values=options.allowed[classes, j, sizes],
        losses=losses[classes, sizes],
        rescales=(sizes != options.current[j]).astype(np.int64),
    )
