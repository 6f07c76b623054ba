"""A good allocation over several node classes, quickly: the fallback of the exact search.

Takes Options and prices, returns one class and size per trainer; called when the exact
search would take too long. Each trainer gets a class, then each class its exact best
sizes; moving one trainer to another class is kept while that gains.
"""

from __future__ import annotations

import numpy as np

from milp.dual import PoolAnswer, solve_pool
from milp.options import Options
from milp.tables import BoolArray, FloatArray, IntArray

MAX_SWEEPS = 4


def improve_classing(options: Options, prices: FloatArray) -> tuple[IntArray, IntArray]:
    """Classes and sizes, feasible; the value is close to the optimum, not proven."""
    accepts: BoolArray = np.any(np.isfinite(options.allowed[:, :, 1:]), axis=2)
    classing = _balanced(options, prices, accepts)
    answers = [_solve_class(options, classing, k) for k in range(len(options.counts))]
    for _ in range(MAX_SWEEPS):
        has_gained = False
        for j in range(len(classing)):
            for k in np.flatnonzero(accepts[:, j]).tolist():
                old = int(classing[j])
                if k == old:
                    continue
                moved = classing.copy()
                moved[j] = k
                left, entered = _solve_class(options, moved, old), _solve_class(options, moved, k)
                before = answers[old].value + answers[k].value
                if left.value + entered.value > before + options.tolerance:
                    classing, has_gained = moved, True
                    answers[old], answers[k] = left, entered
        if not has_gained:
            break
    sizes = np.zeros_like(classing)
    for k, answer in enumerate(answers):
        sizes[classing == k] = answer.sizes
    return np.where(sizes > 0, classing, 0), sizes


def _balanced(options: Options, prices: FloatArray, accepts: BoolArray) -> IntArray:
    """Largest first to the class with most nodes left, of those worth most to it."""
    reduced = options.allowed - prices[:, None, None] * np.arange(options.allowed.shape[2])
    wanted = reduced[:, :, 1:].argmax(axis=2) + 1  # [k, j]
    worth = reduced[:, :, 1:].max(axis=2)
    left = np.asarray(options.counts, dtype=np.int64)
    classing = np.zeros(len(options.current), dtype=np.int64)
    for j in np.argsort(-wanted.max(axis=0), kind="stable"):
        if not accepts[:, j].any():
            continue
        is_best = worth[:, j] >= worth[:, j].max() - float(prices.max())
        k = int(np.where(is_best & accepts[:, j], left, np.iinfo(np.int64).min).argmax())
        classing[j] = k
        left[k] -= wanted[k, j]
    return classing


def _solve_class(options: Options, classing: IntArray, k: int) -> PoolAnswer:
    """Exact sizes of the trainers of one class."""
    members = np.flatnonzero(classing == k)
    allowed = options.allowed[k][members]
    allowed[:, 0] = options.allowed[0, members, 0]
    return solve_pool(allowed, options.current[members], options.counts[k], options.tolerance)
