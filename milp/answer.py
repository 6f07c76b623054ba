"""Turns sizes into an Allocation: nodes, objective, price of a node, marginal values.

Takes the sizes and classes a solver or a simple policy chose; called by both, so that
every policy's answer is worth the same thing in the same unit: objective units (those
of O_j) times seconds, over t_fwd_s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from milp.options import Options
from milp.place import place
from milp.pool import PoolView
from milp.problem import Allocation, Marginal, Problem
from milp.tables import value_table


def make_allocation(
    problem: Problem,
    pool: PoolView,
    options: Options,
    *,
    sizes: Sequence[int],
    classes: Sequence[int],
    node_price: float,
    solver: str = "exact",
) -> Allocation:
    """Place the nodes and put the numbers beside them.

    ``sizes`` and ``classes`` are of the trainers that may run; the others get 0.
    """
    values = [float(options.values[j, n]) for j, n in enumerate(sizes)]
    values += _values_of_stopped(problem)
    marginals = {
        trainer.trainer_id: _marginal(pool, options, j, sizes[j], classes[j])
        for j, trainer in enumerate(pool.trainers)
    }
    for trainer in problem.trainers[problem.p_jmax :]:
        marginals[trainer.trainer_id] = Marginal(gain_of_one_more=None, loss_of_one_fewer=None)
    return Allocation(
        assignment=place(problem, pool, sizes, classes),
        objective=math.fsum(values),
        # One node more never hurts; what float noise says against that is cut off.
        node_price=max(node_price, 0.0),
        marginals=marginals,
        solver=solver,
    )


def _values_of_stopped(problem: Problem) -> list[float]:
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


def _marginal(pool: PoolView, options: Options, j: int, size: int, k: int) -> Marginal:
    """Value of one node more and one fewer for trainer j, all others unchanged.

    One fewer than n_min is 0; one more than 0 is no size when n_min > 1.
    """
    values, trainer = options.values[j], pool.trainers[j]
    gain: float | None = None
    if size + 1 < len(values):
        may_grow = np.isfinite(options.allowed[:, j, size + 1])
        if may_grow[k] if size else may_grow.any():
            gain = float(values[size + 1] - values[size])
    loss: float | None = None
    if size:
        fewer = size - 1 if size > trainer.n_min else 0
        loss = float(values[size] - values[fewer])
    return Marginal(gain_of_one_more=gain, loss_of_one_fewer=loss)
