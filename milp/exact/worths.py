"""Few trainers with few sizes: every value in one table, most of it remembered.

Takes a Problem whose nodes are one class, returns Worths; called by ``milp.solve`` for
small problems, where ``milp.exact.column_data`` would spend most of its time on calls. A
trainer's row depends on few of its fields, which seldom change, and on C_j: from one
decision to the next most rows stay the same, and so they are kept.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from milp.exact.column_data import TOLERANCE, Columns
from milp.pool import PoolView
from milp.problem import Objective, Problem, ProblemTrainer
from milp.tables import FloatArray, IntArray, value_table

MAX_SIZES, MAX_CELLS = 128, 1 << 12  # of one trainer, of all: beyond, columns are quicker
REMEMBERED = 1 << 11  # rows, about 1 KB each
SAME_SLOPE = 1.0 - 1e-12  # steps that steep beside each other are one: float noise

# What a row depends on, beside C_j, the largest size, t_fwd and the objective.
_FIELDS = (
    "n_min",
    "rescale_up_s",
    "rescale_down_s",
    "warm_up_s",
    "weight",
    "current_batch",
    "curve",
    "utility",
    "batch_curves",
)
_terms_of = operator.attrgetter(*_FIELDS)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One trainer: its values, and how they rise at best, the steepest step first."""

    allowed: FloatArray  # [n]: v_j(n); -inf where a bound is broken
    falls: FloatArray  # minus the slope of each step
    lengths: IntArray  # sizes each step goes up by
    magnitude: float  # the largest |value|


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Worths:
    """One row per trainer that may run, in FCFS order."""

    capacity: int  # nodes of the pool
    present: FloatArray  # [j]: C_j
    allowed: FloatArray  # [j, n]: v_j(n); -inf where not allowed, and so is the last column
    falls: FloatArray  # the steps of all rows
    lengths: IntArray
    tolerance: float  # > 0: differences up to this are float noise

    def find_price(self) -> float:
        """Price of a node at which what all take by themselves just fills the pool.

        Steps are taken steepest first; it is the slope of the first that does not fit.
        """
        order = self.falls.argsort(kind="stable")
        first = int(self.lengths.take(order).cumsum().searchsorted(self.capacity, side="right"))
        return -float(self.falls[order[first]]) if first < len(order) else 0.0


def is_small(pool: PoolView, largest: Sequence[int]) -> bool:
    """Whether all values are few enough for a table of them."""
    widest = max(largest, default=0)
    return widest <= MAX_SIZES and len(pool.trainers) * (widest + 2) <= MAX_CELLS


def build_worths(problem: Problem, pool: PoolView, largest: Sequence[int]) -> Worths:
    """Lay out a valid problem whose pool is one class; ``largest`` sizes by trainer."""
    t_fwd_s, objective = problem.t_fwd_s, problem.objective
    present = [len(names) for names in pool.present]
    rows = [
        _row(_terms_of(trainer), n_present, most, t_fwd_s, objective)
        for trainer, n_present, most in zip(pool.trainers, present, largest, strict=True)
    ]
    allowed = np.full((len(rows), max(largest, default=0) + 2), -np.inf)
    for at, row in zip(allowed, rows, strict=True):
        at[: len(row.allowed)] = row.allowed
    return Worths(
        capacity=len(pool.names[0]),
        present=np.array(present, dtype=np.float64),
        allowed=allowed,
        falls=np.concatenate([row.falls for row in rows]) if rows else np.empty(0),
        lengths=np.concatenate([row.lengths for row in rows]) if rows else np.empty(0, np.int64),
        # Where every value is 0, any tolerance tells rescales apart.
        tolerance=TOLERANCE * sum([row.magnitude for row in rows]) or 1.0,
    )


def tabulate(columns: Columns, tolerance: float) -> Worths:
    """The same table from columns; its price is to be found elsewhere."""
    tables = columns.tables(np.arange(len(columns.present)))
    allowed = np.full((len(tables), tables.shape[1] + 1), -np.inf)
    allowed[:, :-1] = tables
    return Worths(
        capacity=columns.capacity,
        present=columns.present,
        allowed=allowed,
        falls=np.empty(0),
        lengths=np.empty(0, dtype=np.int64),
        tolerance=tolerance or 1.0,
    )


@lru_cache(maxsize=REMEMBERED)
def _row(
    terms: tuple[Any, ...], n_present: int, largest: int, t_fwd_s: float, objective: Objective
) -> _Row:
    trainer = ProblemTrainer(trainer_id="", n_max=largest, **dict(zip(_FIELDS, terms, strict=True)))
    last = largest if largest >= trainer.n_min else 0
    allowed = value_table(trainer, n_present, last, t_fwd_s=t_fwd_s, objective=objective)
    magnitude = float(np.abs(allowed).max())
    allowed[1 : trainer.n_min] = -np.inf
    allowed.flags.writeable = False
    steps = _steps([0, *range(trainer.n_min, last + 1)], allowed.tolist())
    return _Row(
        allowed=allowed,
        falls=np.array([-slope for slope, _ in steps]),
        lengths=np.array([length for _, length in steps], dtype=np.int64),
        magnitude=magnitude,
    )


def _steps(sizes: Sequence[int], values: Sequence[float]) -> list[tuple[float, int]]:
    """Slope and length of the edges of the least concave curve above the values."""
    kept = [0]
    steps: list[tuple[float, int]] = []
    for size in sizes[1:]:
        slope = (values[size] - values[kept[-1]]) / (size - kept[-1])
        while steps and slope >= steps[-1][0] * SAME_SLOPE:
            kept.pop()
            steps.pop()
            slope = (values[size] - values[kept[-1]]) / (size - kept[-1])
        if slope > 0:
            steps.append((slope, size - kept[-1]))
            kept.append(size)
    return steps
