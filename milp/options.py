"""What a solver chooses from: per trainer the sizes it may take and their values.

Built from a validated Problem and its PoolView; read by the solvers. Solvers compare
by three keys in this order: value, number of rescales (fewer first), sizes in FCFS
order (earlier trainers get more). Values that differ by no more than ``tolerance``
count as equal: that is float noise, not preference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from milp.pool import PoolView
from milp.problem import Problem
from milp.tables import FloatArray, IntArray, value_table

TOLERANCE = 1e-12  # of the sum over trainers of the largest |value| each can have


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All trainers' sizes as one matrix per class.

    ``allowed[k][j, n]`` is v_j(n) where trainer j may take n nodes of class k (size 0
    is in class 0 only), else -inf; columns reach one size beyond the pool, because the
    price of a node asks for the solution with one node more.
    """

    values: FloatArray  # [j, n]: v_j(n) for every n, bounds not applied
    allowed: FloatArray  # [k, j, n]
    current: IntArray  # [j]: C_j
    counts: tuple[int, ...]  # [k]: nodes per class
    tolerance: float


def build_options(problem: Problem, pool: PoolView) -> Options:
    """Lay out every trainer's values; sizes that break a bound are -inf."""
    counts = pool.counts()
    n_trainers, n_classes = len(pool.trainers), len(counts)
    largest = [[pool.largest(j, k, extra=1) for k in range(n_classes)] for j in range(n_trainers)]
    current = [len(names) for names in pool.present]
    width = 1 + max((n for row in largest for n in row if n), default=1)
    values = np.zeros((n_trainers, width))
    allowed = np.full((n_classes, n_trainers, width), -np.inf)
    for j, trainer in enumerate(pool.trainers):
        # Beyond its own largest size nobody reads the row.
        last = min(max(*largest[j], trainer.n_min) + 1, width - 1)
        row = value_table(
            trainer, current[j], last, t_fwd_s=problem.t_fwd_s, objective=problem.objective
        )
        values[j, : last + 1] = row
        allowed[0, j, 0] = row[0]
        for k in range(n_classes):
            span = slice(trainer.n_min, largest[j][k] + 1)
            allowed[k, j, span] = row[span]
    magnitude = float(np.abs(values).max(axis=1).sum()) if n_trainers else 0.0
    return Options(
        values=values,
        allowed=allowed,
        current=np.asarray(current, dtype=np.int64),
        counts=counts,
        tolerance=TOLERANCE * magnitude,
    )
