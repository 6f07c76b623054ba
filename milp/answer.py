"""Turns sizes into an Allocation: nodes, objective, price of a node, marginal values.

Takes the sizes and classes a solver or a simple policy chose; called by both, so that
every policy's answer is worth the same thing in the same unit: objective units (those
of O_j) times seconds, over t_fwd_s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milp.exact.column_data import Columns
from milp.exact.worths import Worths
from milp.options import Options
from milp.placing.place import place
from milp.pool import PoolView
from milp.problem import Allocation, Marginal, Problem
from milp.tables import best_batch, value_table

NO_MARGINAL = Marginal(gain_of_one_more=None, loss_of_one_fewer=None)


def make_allocation(
    problem: Problem,
    pool: PoolView,
    options: Options | Columns | Worths,
    *,
    sizes: Sequence[int],
    classes: Sequence[int],
    node_price: float,
    solver: str = "exact",
    gap: float = 0.0,
    split: Sequence[Sequence[int]] | None = None,
) -> Allocation:
    """Place the nodes and put the numbers beside them.

    ``sizes`` and ``classes`` are of the trainers that may run; the others get 0.
    ``split[j][k]``: nodes of class k, where a trainer mixes classes.
    """
    if isinstance(options, Worths):
        worth = _worth_of_table(options, sizes)
    elif isinstance(options, Columns):
        worth = _worth_of_columns(options, sizes)
    else:
        worth = _worth_of_options(options, pool, sizes, classes)
    marginals = {
        trainer.trainer_id: Marginal(gain_of_one_more=gain, loss_of_one_fewer=loss)
        for trainer, gain, loss in zip(pool.trainers, worth.gains, worth.losses, strict=True)
    }
    if stopped := problem.trainers[problem.p_jmax :]:
        marginals |= dict.fromkeys((trainer.trainer_id for trainer in stopped), NO_MARGINAL)
        worth.values.extend(values_of_stopped(problem))
    return Allocation(
        assignment=place(problem, pool, sizes, classes, split),
        objective=math.fsum(worth.values),
        # One node more never hurts; what float noise says against that is cut off.
        node_price=max(node_price, 0.0),
        marginals=marginals,
        solver=solver,
        gap=gap,
        batches={
            trainer.trainer_id: best_batch(trainer, size)
            for trainer, size in zip(pool.trainers, sizes, strict=True)
            if size and trainer.batch_curves
        },
    )


def values_of_stopped(problem: Problem) -> list[float]:
    """What trainers beyond p_jmax cost: those that still hold nodes must shrink to 0."""
    names = {node.name for node in problem.nodes}
    values: list[float] = []
    for trainer in problem.trainers[problem.p_jmax :]:
        n_present = sum(name in names for name in trainer.current)
        if n_present:
            table = value_table(
                trainer, n_present, 0, t_fwd_s=problem.t_fwd_s, objective=problem.objective
            )
            values.append(float(table[0]))
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worth:
    """By trainer that may run: what its size is worth, and one node more and one fewer.

    All others unchanged. One fewer than n_min is 0; one more than 0 is no size when
    n_min > 1: None.
    """

    values: list[float]
    gains: list[float | None]
    losses: list[float | None]


def _worth_of_table(worths: Worths, sizes: Sequence[int]) -> _Worth:
    allowed = worths.allowed
    now = np.arange(0, allowed.size, allowed.shape[1])
    now += np.array(sizes, dtype=np.int64)
    triples = zip(
        sizes,
        allowed.take(now).tolist(),
        allowed.take(now + 1).tolist(),
        allowed.take(now - 1).tolist(),  # of size 0: nothing that is read
        allowed[:, 0].tolist(),
        strict=True,
    )
    values: list[float] = []
    gains: list[float | None] = []
    losses: list[float | None] = []
    for size, value, larger, smaller, nothing in triples:
        values.append(value)
        gains.append(None if larger == -math.inf else larger - value)
        fewer = nothing if smaller == -math.inf else smaller
        losses.append(value - fewer if size else None)
    return _Worth(values=values, gains=gains, losses=losses)


def _worth_of_columns(columns: Columns, sizes: Sequence[int]) -> _Worth:
    now = np.array(sizes, dtype=np.float64)
    larger, smaller = now + 1, now - 1
    may_grow = (larger >= columns.n_min) & (larger <= columns.n_max)
    larger[~may_grow] = 0.0
    smaller[smaller < columns.n_min] = 0.0
    values = columns.values_at(now)
    gains = (columns.values_at(larger) - values).tolist()
    losses = (values - columns.values_at(smaller)).tolist()
    return _Worth(
        values=values.tolist(),
        gains=[gain if may else None for gain, may in zip(gains, may_grow.tolist(), strict=True)],
        losses=[loss if size else None for loss, size in zip(losses, sizes, strict=True)],
    )


def _worth_of_options(
    options: Options, pool: PoolView, sizes: Sequence[int], classes: Sequence[int]
) -> _Worth:
    values = [float(options.values[j, n]) for j, n in enumerate(sizes)]
    gains: list[float | None] = []
    losses: list[float | None] = []
    for j, (trainer, size, k) in enumerate(zip(pool.trainers, sizes, classes, strict=True)):
        row, gain = options.values[j], None
        if size + 1 < len(row):
            may_grow = np.isfinite(options.allowed[:, j, size + 1])
            if may_grow[k] if size else may_grow.any():
                gain = float(row[size + 1]) - values[j]
        gains.append(gain)
        fewer = size - 1 if size > trainer.n_min else 0
        losses.append(values[j] - float(row[fewer]) if size else None)
    return _Worth(values=values, gains=gains, losses=losses)
