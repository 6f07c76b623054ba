"""Value tables: what each size of a trainer is worth in the objective of eq. 16.

v_j(n) = t_fwd O_j(n) - O_j(C_j) R, with R = R_up for n > C_j, R_dw for n < C_j, 0 at
C_j; C_j counts the current nodes still in the pool. Unit: that of O_j times seconds.
A parked trainer has O_j(0) = 0, so starting costs nothing. With admissible batches
O_j(n) is that of the best batch at n. With a warm-up the n - C_j nodes that join earn
their share of O_j(n) for that much less than t_fwd. Read by the solvers.
"""

from __future__ import annotations

import itertools
import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from milp.problem import Curve, Objective, ProblemTrainer

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


def value_table(
    trainer: ProblemTrainer,
    n_present: int,
    largest: int,
    *,
    t_fwd_s: float,
    objective: Objective,
) -> FloatArray:
    """Values of sizes 0..largest (bounds not applied), for a trainer with C_j present."""
    curve, scale = rate_curve(trainer, objective), rate_scale(trainer, objective)
    sizes = np.arange(largest + 1)
    rate = np.interp(sizes, (0, *curve.sizes), (0.0, *curve.samples_per_s)) * scale
    held = held_rate(trainer, n_present, objective)
    values = t_fwd_s * rate
    if trainer.warm_up_s > 0:
        joined_s = max(t_fwd_s - trainer.warm_up_s, 0.0)
        joining = sizes[n_present + 1 :]
        seconds = (n_present * t_fwd_s + (joining - n_present) * joined_s) / joining
        values[n_present + 1 :] = rate[n_present + 1 :] * seconds
    values[:n_present] -= held * trainer.rescale_down_s
    values[n_present + 1 :] -= held * trainer.rescale_up_s
    return values


def rate_curve(trainer: ProblemTrainer, objective: Objective) -> Curve:
    """O_j before scaling: the curve, the utility, or the best of the batches' curves."""
    if objective is Objective.UTILITY and trainer.utility is not None:
        return trainer.utility
    if len(trainer.batch_curves) > 1:
        return _upper_curve([batch.curve for batch in trainer.batch_curves])
    return trainer.batch_curves[0].curve if trainer.batch_curves else trainer.curve


def rate_scale(trainer: ProblemTrainer, objective: Objective) -> float:
    """Factor that turns a curve's values into the objective's unit."""
    if objective in {Objective.THROUGHPUT, Objective.UTILITY}:
        return 1.0
    curve = rate_curve(trainer, objective)
    # O(1): the line from (0, 0) to the first breakpoint
    single = curve.samples_per_s[0] / curve.sizes[0]
    return (trainer.weight if objective is Objective.WEIGHTED else 1.0) / single


def held_rate(trainer: ProblemTrainer, n_present: int, objective: Objective) -> float:
    """O_j(C_j), scaled: what a rescale pauses, with the batch the trainer has now."""
    curve = rate_curve(trainer, objective)
    if objective is not Objective.UTILITY and trainer.current_batch is not None:
        for batch in trainer.batch_curves:
            if batch.global_batch == trainer.current_batch:
                curve = batch.curve
    return rate_at(curve, n_present) * rate_scale(trainer, objective)


def best_batch(trainer: ProblemTrainer, size: int) -> int:
    """The smallest global batch that reaches the best throughput at a size."""
    best, chosen = -math.inf, 0
    for batch in trainer.batch_curves:  # by increasing global batch
        rate = rate_at(batch.curve, size)
        if rate > best:
            best, chosen = rate, batch.global_batch
    return chosen


def rate_at(curve: Curve, size: int) -> float:
    """A curve's value at one size."""
    return float(np.interp(size, (0, *curve.sizes), (0.0, *curve.samples_per_s)))


def _upper_curve(curves: list[Curve]) -> Curve:
    """The best of several curves at every whole size, as one curve.

    Between two breakpoints of any of them the best is convex, and it can bend where two
    cross; a breakpoint at the whole sizes on either side of that keeps it exact.
    """
    knots = sorted({1, *itertools.chain.from_iterable(curve.sizes for curve in curves)})
    sizes = set(knots)
    for left, right in itertools.pairwise(knots):
        ends = [(rate_at(curve, left), rate_at(curve, right)) for curve in curves]
        for (a0, a1), (b0, b1) in itertools.combinations(ends, 2):
            if (a0 - b0) * (a1 - b1) < 0:
                cross = left + int((right - left) * (a0 - b0) / ((a0 - b0) - (a1 - b1)))
                sizes |= {max(left, cross - 1), cross, cross + 1, min(right, cross + 2)}
    inside = sorted(size for size in sizes if 1 <= size <= knots[-1])
    best = [max(rate_at(curve, size) for curve in curves) for size in inside]
    return Curve(sizes=tuple(inside), samples_per_s=tuple(best))
