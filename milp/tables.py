"""Value tables: the worth of each size of a trainer, and its steepest rises.

v_j(n) = t_fwd O_j(n) - O_j(C_j) R, with R = R_up for n > C_j, R_dw for n < C_j, 0 at
C_j; C_j counts the current nodes still in the pool. Unit: that of O_j times seconds.
A parked trainer has O_j(0) = 0, so starting costs nothing. With a warm-up w a trainer that grows
goes on at O_j(C_j) until its joining nodes are warm: w O_j(C_j) + (t_fwd - w) O_j(n) in place of
t_fwd O_j(n). ``milp.reference.timeline`` tells the same as a clock. Read by the solvers.

``rising_edges`` takes values by size; called by ``milp.options``, which remembers the slopes of a
row. With them at hand the price takes one sort, without them ``milp.exact.dual`` searches for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from milp.portable import interpolated
from milp.problem import Curve, Objective, ProblemTrainer

SAME_SLOPE = 1.0 - 1e-12  # edges that steep beside each other are one: float noise

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
    rate = rates_up_to(curve, largest) * scale
    rate_now = held_rate(trainer, n_present, objective)
    values = t_fwd_s * rate
    larger = slice(n_present + 1, None)
    if trainer.warm_up_s > 0:
        warming_s = min(trainer.warm_up_s, t_fwd_s)
        values[larger] = rate[larger] * (t_fwd_s - warming_s) + rate_now * warming_s
    values[:n_present] -= rate_now * trainer.rescale_down_s
    values[larger] -= rate_now * trainer.rescale_up_s
    return values


def rate_curve(trainer: ProblemTrainer, objective: Objective) -> Curve:
    """O_j before scaling: the curve, or the utility."""
    if objective is Objective.UTILITY and trainer.utility is not None:
        return trainer.utility
    return trainer.curve


def rate_scale(trainer: ProblemTrainer, objective: Objective) -> float:
    """Factor that turns a curve's values into the objective's unit."""
    if objective in {Objective.THROUGHPUT, Objective.UTILITY}:
        return 1.0
    curve = rate_curve(trainer, objective)
    # O(1): the line from (0, 0) to the first breakpoint
    rate_of_one = curve.samples_per_s[0] / curve.sizes[0]
    weight = trainer.weight if objective is Objective.WEIGHTED else 1.0
    return weight / rate_of_one


def held_rate(trainer: ProblemTrainer, n_present: int, objective: Objective) -> float:
    """O_j(C_j), scaled: what a rescale pauses."""
    return rate_at(rate_curve(trainer, objective), n_present) * rate_scale(trainer, objective)


def rate_at(curve: Curve, size: float) -> float:
    """A curve's value at one size, which need not be whole."""
    return interpolated(size, (0, *curve.sizes), (0.0, *curve.samples_per_s))


def rates_up_to(curve: Curve, largest: int) -> FloatArray:
    """A curve's values at sizes 0..largest, digit for digit those of ``rate_at``."""
    xs, ys, slopes = _corners(curve)
    ends = np.minimum(xs, largest + 1)
    corner_before = np.arange(len(slopes)).repeat(ends[1:] - ends[:-1])  # of each size
    steps = np.arange(len(corner_before)) - xs[corner_before]
    rates = np.full(largest + 1, ys[-1])
    rates[: len(corner_before)] = slopes[corner_before] * steps + ys[corner_before]
    return rates


@lru_cache(maxsize=1024)
def _corners(curve: Curve) -> tuple[IntArray, FloatArray, FloatArray]:
    """Sizes and values of a curve from (0, 0) on, and the slopes between them."""
    xs = np.array((0, *curve.sizes), dtype=np.int64)
    ys = np.array((0.0, *curve.samples_per_s), dtype=np.float64)
    return xs, ys, (ys[1:] - ys[:-1]) / (xs[1:] - xs[:-1])


def rising_edges(points: Iterable[tuple[int, float]]) -> list[tuple[float, int]]:
    """Slope and length of the rising edges of the least concave curve above the points.

    Points are sizes, from 0 on and ascending, with their values. Slopes fall.
    """
    corners: list[tuple[int, float]] = []
    edges: list[tuple[float, int]] = []
    for size, value in points:
        if not corners:
            corners.append((size, value))
            continue
        corner_size, corner_value = corners[-1]
        slope = (value - corner_value) / (size - corner_size)
        while edges:
            slope_before, _ = edges[-1]
            if slope < slope_before * SAME_SLOPE:
                break
            corners.pop()
            edges.pop()
            corner_size, corner_value = corners[-1]
            slope = (value - corner_value) / (size - corner_size)
        if slope > 0:
            edges.append((slope, size - corner_size))
            corners.append((size, value))
    return edges


def price_of(edges: FloatArray, capacity: int) -> float:
    """Price of a node at which what all trainers take by themselves just fills the pool.

    ``edges[0]`` and ``edges[1]`` are the slopes and lengths of all trainers' edges, in any
    order. The steepest are taken first; the price is the slope of the first that does not
    fit, 0 if all do.
    """
    slopes, lengths = edges
    order = (-slopes).argsort(kind="stable")
    first = int(lengths.take(order).cumsum().searchsorted(capacity, side="right"))
    if first == len(order):
        return 0.0
    return float(slopes[order[first]])
