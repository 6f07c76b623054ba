"""The options of a solver: per trainer the sizes it may take and their values.

Built from a validated Problem and its PoolView; read by all solvers and by the answer. A
trainer's row depends on few of its fields, which seldom change, and on C_j: from one
decision to the next most rows stay the same, and so they are remembered.

Solvers compare by three keys in this order: value, number of rescales (fewer first), sizes
in FCFS order (earlier trainers get more). Values that differ by no more than ``tolerance``
count as equal: that is float noise, not preference.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from milp.pool import PoolView
from milp.problem import Objective, Problem, ProblemTrainer
from milp.tables import FloatArray, IntArray, price_of, rate_curve, rising_edges, value_table

TOLERANCE = 1e-12  # of the sum over trainers of the largest |value| each can have
REMEMBERED, REMEMBERED_SIZES = 1 << 11, 128  # rows, and sizes of one: 2 MB together
REMEMBERED_EDGES = 1 << 13  # of a row cut off at some size: 3 MB together
NO_EDGES: FloatArray = np.empty((2, 0))

# What a row depends on, beside C_j, the largest size, t_fwd and the objective.
_FIELDS = (
    "n_min",
    "rescale_up_s",
    "rescale_down_s",
    "warm_up_s",
    "weight",
    "curve",
    "utility",
    "sizes",
)
_terms_of = operator.attrgetter(*_FIELDS)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One trainer, of sizes up to its largest."""

    allowed: FloatArray  # [n]: v_j(n); -inf where that is no size of it
    magnitude: float  # the largest |v_j(n)|
    corners: tuple[int, ...]  # sizes between which v_j rises evenly, ascending, but for 0


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
    edges: FloatArray | None  # slopes and lengths of all rows' rising edges; None: too many
    rows: tuple[_Row, ...]  # [j]
    largest: tuple[int, ...]  # [j]: largest size of any class, with one node more

    def price(self) -> float | None:
        """Price of a node, were all nodes of one class; None: to be found another way."""
        if self.edges is None:
            return None
        return price_of(self.edges, sum(self.counts))

    def edges_of(self, trainers: Iterable[int]) -> FloatArray:
        """Return the slopes and lengths of the rising edges of some trainers."""
        make_edges: Callable[[_Row, int], FloatArray] = _edges
        if self.edges is None:  # too large to be remembered
            make_edges = _edges.__wrapped__
        edges = [make_edges(self.rows[j], self.largest[j]) for j in trainers]
        return np.concatenate([NO_EDGES, *edges], axis=1)


def build_options(problem: Problem, pool: PoolView) -> Options:
    """Lay out every trainer's values; sizes that break a bound are -inf."""
    counts = pool.counts()
    n_present = list(map(len, pool.present))  # C_j
    largest_by_class = [_largest_sizes(pool, k) for k in range(len(counts))]
    largest = largest_by_class[0]
    if len(counts) > 1:
        largest = list(map(max, *largest_by_class))
    widest = max(largest, default=0)
    is_small = widest <= REMEMBERED_SIZES
    edges: FloatArray | None = None
    if is_small:
        # Not as the pool bounds them: what is remembered then serves pools of any size.
        reach = [min(trainer.n_max, REMEMBERED_SIZES) for trainer in pool.trainers]
        rows = _rows(_row, problem, pool, n_present, reach)
    else:
        rows = _rows(_row.__wrapped__, problem, pool, n_present, largest)
    if rows and is_small:
        edges = np.concatenate(list(map(_edges, rows, largest)), axis=1)
    table = np.full((len(rows), widest + 2), -np.inf)
    for cells, row, last in zip(table, rows, largest, strict=True):
        cells[: last + 1] = row.allowed[: last + 1]
    values = table[None]
    if len(counts) > 1:
        limits = np.array(largest_by_class, dtype=np.int64)
        values = np.where(np.arange(widest + 2) <= limits[:, :, None], table, -np.inf)
        values[1:, :, 0] = -np.inf
    return Options(
        allowed=values,
        current=np.array(n_present, dtype=np.int64),
        counts=counts,
        tolerance=TOLERANCE * math.fsum([row.magnitude for row in rows]),
        edges=edges,
        rows=tuple(rows),
        largest=tuple(largest),
    )


def _largest_sizes(pool: PoolView, k: int) -> list[int]:
    """Return the largest size of each trainer in class k, with one node more."""
    return [pool.largest(j, k, extra=1) for j in range(len(pool.trainers))]


def _rows(
    row_of: Callable[..., _Row],
    problem: Problem,
    pool: PoolView,
    present: Sequence[int],
    reach: Sequence[int],
) -> list[_Row]:
    t_fwd_s, objective = problem.t_fwd_s, problem.objective
    return [
        row_of(_terms_of(trainer), n_present, last, t_fwd_s, objective)
        for trainer, n_present, last in zip(pool.trainers, present, reach, strict=True)
    ]


@lru_cache(maxsize=REMEMBERED)
def _row(
    terms: tuple[Any, ...], n_present: int, last: int, t_fwd_s: float, objective: Objective
) -> _Row:
    trainer = ProblemTrainer(trainer_id="", n_max=last, **dict(zip(_FIELDS, terms, strict=True)))
    values = value_table(trainer, n_present, last, t_fwd_s=t_fwd_s, objective=objective)
    magnitude = float(np.abs(values).max())
    values[1 : trainer.n_min] = -np.inf
    corners: Iterable[int]
    if trainer.sizes:
        corners = trainer.sizes
        values[1:][~np.isin(np.arange(1, last + 1), corners)] = -np.inf
    else:
        # Between these v_j is linear, and at C_j it jumps up: no other size is a corner.
        corners = {trainer.n_min, n_present, *rate_curve(trainer, objective).sizes}
    values.flags.writeable = False  # rows are remembered, and shared by all who ask
    return _Row(
        allowed=values,
        magnitude=magnitude,
        corners=tuple(sorted([size for size in corners if trainer.n_min <= size <= last])),
    )


@lru_cache(maxsize=REMEMBERED_EDGES)
def _edges(row: _Row, last: int) -> FloatArray:
    """Slopes and lengths of the edges of the row cut off behind a size."""
    sizes = [0, *(size for size in row.corners if size < last)]
    if row.allowed[last] > -np.inf and last:
        sizes.append(last)
    edges = rising_edges(zip(sizes, row.allowed[sizes].tolist(), strict=True))
    return np.array(edges, dtype=np.float64).reshape(-1, 2).T
