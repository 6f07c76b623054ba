"""What a solver chooses from: per trainer the sizes it may take and their values.

Built from a validated Problem and its PoolView; read by all solvers and by the answer. A
trainer's row depends on few of its fields, which seldom change, and on C_j: from one
decision to the next most rows stay the same, and so they are remembered.

Solvers compare by three keys in this order: value, number of rescales (fewer first), sizes
in FCFS order (earlier trainers get more). Values that differ by no more than ``tolerance``
count as equal: that is float noise, not preference.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from milp.exact.slopes import price_of, rising_edges
from milp.pool import PoolView
from milp.problem import Objective, Problem, ProblemTrainer
from milp.tables import FloatArray, IntArray, rate_curve, value_table

TOLERANCE = 1e-12  # of the sum over trainers of the largest |value| each can have
REMEMBERED, REMEMBERED_SIZES = 1 << 11, 128  # rows, and sizes of one: 2 MB together

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """All trainers' sizes as one matrix per class.

    ``allowed[k][j, n]`` is v_j(n) where trainer j may take n nodes of class k (size 0
    is in class 0 only), else -inf. Columns reach one size beyond the pool, because the
    price of a node asks for the solution with one node more, and the last one is -inf.
    """

    allowed: FloatArray  # [k, j, n]
    current: IntArray  # [j]: C_j
    counts: tuple[int, ...]  # [k]: nodes per class
    tolerance: float
    slopes: FloatArray | None  # of all rows' rising edges; None: too many to remember
    lengths: IntArray  # sizes each of these goes up by

    def price(self) -> float | None:
        """Price of a node, were all nodes of one class; None: to be found another way."""
        if self.slopes is None:
            return None
        return price_of(self.slopes, self.lengths, sum(self.counts))


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One trainer, of sizes up to its largest."""

    allowed: FloatArray  # [n]: v_j(n); -inf below n_min
    magnitude: float  # the largest |v_j(n)|
    slopes: FloatArray
    lengths: IntArray


def build_options(problem: Problem, pool: PoolView) -> Options:
    """Lay out every trainer's values; sizes that break a bound are -inf."""
    counts, t_fwd_s, objective = pool.counts(), problem.t_fwd_s, problem.objective
    present = [len(names) for names in pool.present]
    every, classes = range(len(present)), range(len(counts))
    if len(counts) == 1:
        most = [pool.largest(j, 0, extra=1) for j in every]
    else:
        largest = [[pool.largest(j, k, extra=1) for k in classes] for j in every]
        most = [max(sizes) for sizes in largest]
    widest = max(most, default=0)
    is_small = widest <= REMEMBERED_SIZES
    row_of = _row if is_small else _row.__wrapped__
    rows = [
        row_of(_terms_of(trainer), n_present, last, t_fwd_s, objective)
        for trainer, n_present, last in zip(pool.trainers, present, most, strict=True)
    ]
    table = np.full((len(rows), widest + 2), -np.inf)
    for cells, row in zip(table, rows, strict=True):
        cells[: len(row.allowed)] = row.allowed
    allowed = table[None]
    if len(counts) > 1:
        limits = np.array(largest, dtype=np.int64).reshape(-1, len(counts)).T
        allowed = np.where(np.arange(widest + 2) <= limits[:, :, None], table, -np.inf)
        allowed[1:, :, 0] = -np.inf
    return Options(
        allowed=allowed,
        current=np.array(present, dtype=np.int64),
        counts=counts,
        tolerance=TOLERANCE * sum([row.magnitude for row in rows]),
        slopes=np.concatenate([row.slopes for row in rows]) if rows and is_small else None,
        lengths=np.concatenate([row.lengths for row in rows]) if rows else np.zeros(0, np.int64),
    )


def forget_rows() -> None:
    """Make every row anew from now on, as a process does that has just begun."""
    _row.cache_clear()


@lru_cache(maxsize=REMEMBERED)
def _row(
    terms: tuple[Any, ...], n_present: int, largest: int, t_fwd_s: float, objective: Objective
) -> _Row:
    trainer = ProblemTrainer(trainer_id="", n_max=largest, **dict(zip(_FIELDS, terms, strict=True)))
    n_min, last = trainer.n_min, largest if largest >= trainer.n_min else 0
    allowed = value_table(trainer, n_present, last, t_fwd_s=t_fwd_s, objective=objective)
    magnitude = float(np.abs(allowed).max())
    allowed[1:n_min] = -np.inf
    allowed.flags.writeable = False
    corners: Iterable[int] = range(n_min, last + 1)
    if trainer.warm_up_s <= 0:
        # Between these v_j is linear, and at C_j it jumps up: no other size is a corner.
        bends = {n_min, n_present, last, *rate_curve(trainer, objective).sizes}
        corners = sorted([size for size in bends if n_min <= size <= last])
    sizes = [0, *corners]
    edges = rising_edges(zip(sizes, allowed[sizes].tolist(), strict=True))
    return _Row(
        allowed=allowed,
        magnitude=magnitude,
        slopes=np.array([slope for slope, _ in edges]),
        lengths=np.array([length for _, length in edges], dtype=np.int64),
    )
