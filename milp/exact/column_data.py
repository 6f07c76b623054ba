"""Trainers as columns of numbers: what the sizes depend on, and nothing else.

Made from a Problem whose nodes are one class; any number of decisions can be taken on
the same columns. ``milp.exact.columns`` solves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from milp.pool import PoolView, view_pool
from milp.problem import Problem, ProblemTrainer
from milp.tables import (
    BoolArray,
    FloatArray,
    IntArray,
    held_rate,
    rate_curve,
    rate_scale,
    value_table,
)

FAR = float(1 << 40)  # a breakpoint beyond any size: from the last true one on, O is flat
TOLERANCE = 1e-12  # of the sum over trainers of the largest |value| each can have


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """One row per trainer that may run, in FCFS order; sizes are whole numbers as floats.

    ``candidates`` are the sizes that can be best at some price of a node: 0, the
    breakpoints, both bounds, C_j. Between them v_j is linear; at C_j it jumps up
    (O_j(C_j) R >= 0), so no size beside it is best without an end being as good.
    """

    capacity: int  # nodes of the pool
    knots: FloatArray  # [j, k]: sizes where O_j bends, from 0 on, the last ones FAR
    rates: FloatArray  # [j, k]: O_j there, before scaling
    seconds: FloatArray  # [j]: t_fwd; 1 where the rates are over t_fwd already
    slopes: FloatArray  # [j, k]: of the line that begins there
    scale: FloatArray  # [j]: turns rates into the objective's unit
    n_min: FloatArray  # [j]
    n_max: FloatArray  # [j]: what the pool lets it have were there one node more
    present: FloatArray  # [j]: C_j
    loss_up: FloatArray  # [j]: O_j(C_j) R_up
    loss_down: FloatArray  # [j]: O_j(C_j) R_dw
    candidates: FloatArray  # [j, m]
    lines: IntArray  # [j, m]: index into the flat knots of the line a candidate is on
    barred: BoolArray  # [j, m]: not allowed, or there already
    signs: FloatArray  # [2, j, m]: 1 where a candidate is above, or below, C_j; else 0

    def candidate_values(self) -> FloatArray:
        """v_j of the candidates, barred or not."""
        values = self.candidates - self.knots.take(self.lines)
        values *= self.slopes.take(self.lines)
        values += self.rates.take(self.lines)
        values *= self.scale[:, None]
        values *= self.seconds[:, None]
        values -= self.signs[0] * self.loss_up[:, None]
        values -= self.signs[1] * self.loss_down[:, None]
        return values

    def values_at(self, sizes: FloatArray) -> FloatArray:
        """v_j of one size per trainer, to the bit that of ``milp.tables.value_table``."""
        segment = (self.knots <= sizes[:, None]).sum(axis=1) - 1
        segment += np.arange(0, self.knots.size, self.knots.shape[1])
        rate = self.slopes.take(segment) * (sizes - self.knots.take(segment))
        rate = (rate + self.rates.take(segment)) * self.scale
        values: FloatArray = self.seconds * rate - self.rescale_loss(sizes)
        return values

    def rescale_loss(self, sizes: FloatArray) -> FloatArray:
        """O_j(C_j) R of one size per trainer."""
        loss = np.where(sizes > self.present, self.loss_up, self.loss_down)
        loss[sizes == self.present] = 0.0
        return loss

    def tables(self, rows: IntArray) -> FloatArray:
        """v_j(n) of some trainers for every n up to the largest n_max; -inf: not allowed.

        To the bit that of ``milp.tables.value_table`` where allowed.
        """
        n_max = self.n_max[rows][:, None]
        width = int(n_max.max(initial=0.0)) + 1
        knots, present = self.knots[rows], self.present[rows][:, None]
        ends = np.full((len(rows), knots.shape[1] + 1), float(width))
        np.minimum(knots, width, out=ends[:, :-1])
        repeats = np.diff(ends).astype(np.int64).ravel()  # whole sizes on each line

        def spread(column: FloatArray) -> FloatArray:
            return column.repeat(repeats).reshape(len(rows), width)

        sizes = np.arange(width, dtype=np.float64)
        values = spread(self.slopes[rows].ravel())
        values *= sizes - spread(knots.ravel())
        values += spread(self.rates[rows].ravel())
        values *= self.scale[rows][:, None]
        values *= self.seconds[rows][:, None]
        values -= (sizes > present) * self.loss_up[rows][:, None]
        values -= (sizes < present) * self.loss_down[rows][:, None]
        barred = (sizes < self.n_min[rows][:, None]) | (sizes > n_max)
        barred[:, 0] = False
        values[barred] = -np.inf
        return values

    def losses(self, rows: IntArray, price: float, best: FloatArray) -> FloatArray:
        """What sizes 0, 1, ... of some trainers lose against ``best``; inf: not allowed.

        Up to float noise that is ``best`` less the value, plus the price of the nodes.
        """
        factor = (self.seconds * self.scale)[:, None]
        # By trainer: size 0, what is too small, the lines of O_j, what is too large.
        slope, offset = np.zeros((2, len(factor), self.knots.shape[1] + 3))
        np.multiply(self.slopes, -factor, out=slope[:, 2:-1])
        offset[:, 2:-1] = (self.slopes * self.knots - self.rates) * factor
        offset += best[:, None]
        slope[:, 2:-1] += price
        offset[:, 1] = offset[:, -1] = np.inf
        cells = _cells(self.knots[rows], self.n_min[rows], self.n_max[rows], rows)
        losses: FloatArray = slope.take(cells)
        sizes = np.arange(cells.shape[1], dtype=np.float64)
        losses *= sizes
        losses += offset.take(cells)
        has = ((self.loss_up + self.loss_down)[rows] > 0).nonzero()[0]
        if len(has):
            held = rows[has]
            present = self.present[held]
            up, down = self.loss_up[held][:, None], self.loss_down[held][:, None]
            extra = (sizes > present[:, None]) * (up - down)
            extra += down
            inside = (present < cells.shape[1]).nonzero()[0]
            extra[inside, present[inside].astype(np.int64)] = 0.0
            losses[has] += extra
        return losses


def _cells(knots: FloatArray, n_min: FloatArray, n_max: FloatArray, rows: IntArray) -> IntArray:
    """Which of its pieces, counted through all trainers, each size of a trainer is on."""
    width = int(n_max.max(initial=0.0)) + 1
    n_pieces = knots.shape[1] + 3
    starts = np.empty((len(knots), n_pieces + 1))
    starts[:, 0], starts[:, 1], starts[:, -1] = 0.0, 1.0, width
    end = n_max[:, None] + 1
    np.clip(knots, np.minimum(n_min[:, None], end), end, out=starts[:, 2:-2])
    starts[:, -2] = end[:, 0]
    np.maximum.accumulate(starts, axis=1, out=starts)
    pieces = np.arange(n_pieces) + (rows * n_pieces)[:, None]
    lengths = np.diff(starts).astype(np.int64)
    cells: IntArray = pieces.ravel().repeat(lengths.ravel()).reshape(-1, width)
    return cells


def build_columns(problem: Problem, pool: PoolView | None = None) -> Columns:
    """Lay out a valid problem whose pool is one class."""
    pool = view_pool(problem) if pool is None else pool
    trainers = pool.trainers
    present = [len(names) for names in pool.present]
    largest = [pool.largest(j, 0, extra=1) for j in range(len(trainers))]
    lines = [
        _lines(problem, trainer, n, most)
        for trainer, n, most in zip(trainers, present, largest, strict=True)
    ]
    knots, rates = _pad(lines)
    is_worth = [trainer.warm_up_s > 0 for trainer in trainers]  # the rates are values
    held = [held_rate(t, n, problem.objective) for t, n in zip(trainers, present, strict=True)]
    return lay_out(
        capacity=len(pool.names[0]),
        seconds=_column([1.0 if worth else problem.t_fwd_s for worth in is_worth]),
        knots=knots,
        rates=rates,
        scale=_column(
            [
                1.0 if worth else rate_scale(t, problem.objective)
                for t, worth in zip(trainers, is_worth, strict=True)
            ]
        ),
        n_min=_column([t.n_min for t in trainers]),
        n_max=_column(largest),
        present=_column(present),
        loss_up=_column([h * t.rescale_up_s for h, t in zip(held, trainers, strict=True)]),
        loss_down=_column([h * t.rescale_down_s for h, t in zip(held, trainers, strict=True)]),
    )


def _lines(
    problem: Problem, trainer: ProblemTrainer, n_present: int, largest: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Breakpoints and rates of O_j; with a warm-up, every size and its worth over t_fwd."""
    if trainer.warm_up_s <= 0:
        curve = rate_curve(trainer, problem.objective)
        return (0, *curve.sizes), (0.0, *curve.samples_per_s)
    last = max(largest, n_present, trainer.n_min)
    free = replace(trainer, rescale_up_s=0.0, rescale_down_s=0.0)
    table = value_table(free, n_present, last, t_fwd_s=problem.t_fwd_s, objective=problem.objective)
    return range(last + 1), table.tolist()


def lay_out(
    *,
    capacity: int,
    seconds: FloatArray,
    knots: FloatArray,
    rates: FloatArray,
    scale: FloatArray,
    n_min: FloatArray,
    n_max: FloatArray,
    present: FloatArray,
    loss_up: FloatArray,
    loss_down: FloatArray,
) -> Columns:
    """Columns from what they are made of; the rest follows."""
    steps = np.diff(knots, axis=1)
    slopes = np.zeros_like(knots)
    np.divide(np.diff(rates, axis=1), steps, out=slopes[:, :-1], where=steps > 0)
    asked = np.stack([n_min, n_max, present], axis=1)
    sizes = np.concatenate([knots, asked], axis=1)
    lines = (knots[:, None, :] <= sizes[:, :, None]).sum(axis=2) - 1
    lines += np.arange(0, knots.size, knots.shape[1])[:, None]
    barred = (sizes < n_min[:, None]) | (sizes > n_max[:, None])
    barred[:, -3:] |= asked == knots.take(lines[:, -3:])  # it is a breakpoint
    barred[:, -2] |= n_max == n_min
    barred[:, -1] |= (present == n_min) | (present == n_max)
    barred[:, 0] = False
    signs = np.stack([sizes > present[:, None], sizes < present[:, None]])
    return Columns(
        capacity=capacity,
        seconds=seconds,
        knots=knots,
        rates=rates,
        slopes=slopes,
        scale=scale,
        n_min=n_min,
        n_max=n_max,
        present=present,
        loss_up=loss_up,
        loss_down=loss_down,
        candidates=np.where(barred, 0.0, sizes),
        lines=np.where(barred, lines[:, :1], lines),
        barred=barred,
        signs=signs.astype(np.float64),
    )


def _column(numbers: Sequence[float]) -> FloatArray:
    return np.array(numbers, dtype=np.float64)


def _pad(
    lines: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[FloatArray, FloatArray]:
    """Breakpoints and rates of all trainers, as wide as the one with the most."""
    width = 1 + max((len(sizes) for sizes, _ in lines), default=1)
    knots = np.full((len(lines), width), FAR)
    rates = np.empty((len(lines), width))
    for j, (sizes, values) in enumerate(lines):
        n = len(sizes)
        knots[j, :n] = sizes
        rates[j, :n] = values
        rates[j, n:] = values[-1]
    return knots, rates
