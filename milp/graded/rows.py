"""What each trainer may choose when nodes earn unequally: rows of (class, size).

Takes Grades; gives one row per legal choice of a trainer with all that its worth depends
on, and what the rows are worth at given prices of the grades. Read by the graded search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from milp.graded.earning import Grades, rate_table
from milp.problem import Objective
from milp.tables import BoolArray, FloatArray, IntArray, held_rate

FORBIDDEN = -1e60  # below any sum of products of what validate admits
NEVER = FORBIDDEN / 2  # what is below contains a forbidden part


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Choices (index m), ascending by trainer. A row takes ``need`` of the grades it may.

    A row that shrinks chooses which of its own nodes it keeps; one that grows or stays
    keeps all of them (``fixed``) and chooses among the others.
    """

    trainer: IntArray
    size: IntArray
    menu: IntArray  # the class it is of; 0 when the trainer mixes classes
    need: IntArray
    rate: FloatArray  # O_j(size) / size
    constant: FloatArray  # objective of what is not chosen: nodes kept, the rescale
    fixed: IntArray  # [m, g]: nodes of the row whatever it chooses
    limit: IntArray  # [m, g]: how many more it may choose
    profit: FloatArray  # [m, g]: what each of those adds, FORBIDDEN where there are none

    def keep(self, chosen: BoolArray | IntArray) -> Rows:
        """Some of the rows."""
        return Rows(
            trainer=self.trainer[chosen],
            size=self.size[chosen],
            menu=self.menu[chosen],
            need=self.need[chosen],
            rate=self.rate[chosen],
            constant=self.constant[chosen],
            fixed=self.fixed[chosen],
            limit=self.limit[chosen],
            profit=self.profit[chosen],
        )

    def starts(self) -> NDArray[np.intp]:
        """Index of the first row of each trainer."""
        is_first = np.ones(len(self.trainer), dtype=np.bool_)
        is_first[1:] = self.trainer[1:] != self.trainer[:-1]
        return np.flatnonzero(is_first)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Rows of one trainer that differ in size only."""

    trainer: int
    menu: int
    sizes: IntArray
    rate: FloatArray
    cost: float  # of the rescale, at all sizes but C_j
    fixed: IntArray  # [g]
    limit: IntArray  # [g]
    seconds: FloatArray  # [g]: of a chosen node
    fixed_s: float  # of the fixed nodes together


def build_rows(grades: Grades, objective: Objective) -> Rows:
    """Lay out every legal choice; size 0 is the first row of each trainer."""
    parts = [part for j in range(len(grades.trainers)) for part in _parts(grades, j, objective)]
    lengths = [len(part.sizes) for part in parts]
    which = np.repeat(np.arange(len(parts)), lengths)
    size = np.concatenate([part.sizes for part in parts])
    rate = np.concatenate([part.rate for part in parts])
    fixed = np.array([part.fixed for part in parts])
    limit = np.array([part.limit for part in parts])
    seconds = np.array([part.seconds for part in parts])
    trainer = np.array([part.trainer for part in parts])[which]
    cost = np.array([part.cost for part in parts])[which]
    fixed_s = np.array([part.fixed_s for part in parts])[which]
    return Rows(
        trainer=trainer,
        size=size,
        menu=np.array([part.menu for part in parts])[which],
        need=size - fixed.sum(axis=1)[which],
        rate=rate,
        constant=rate * fixed_s - np.where(size == grades.present[trainer], 0.0, cost),
        fixed=fixed[which],
        limit=limit[which],
        profit=np.where(limit[which] > 0, rate[:, None] * seconds[which], FORBIDDEN),
    )


def _parts(grades: Grades, j: int, objective: Objective) -> Iterator[_Part]:
    """Size 0; and by menu what shrinks, and what grows or stays."""
    trainer, present, own = grades.trainers[j], int(grades.present[j]), grades.own[j]
    held = held_rate(trainer, present, objective)
    largest = min(trainer.n_max, int(grades.counts.sum()))
    sizes = np.arange(largest + 1)
    rates = rate_table(trainer, largest, objective) / np.maximum(sizes, 1)
    shrunk = _Part(
        trainer=j,
        menu=0,
        sizes=sizes[:1],
        rate=rates[:1],
        cost=held * trainer.rescale_down_s,
        fixed=np.zeros_like(own),
        limit=np.zeros_like(own),
        seconds=grades.kept_s,
        fixed_s=0.0,
    )
    yield shrunk
    for menu, in_menu in _menus(grades, j):
        kept = np.where(in_menu, own, 0)
        n_kept = int(kept.sum())
        if trainer.n_min < present and n_kept:
            span = slice(trainer.n_min, min(n_kept, present - 1, trainer.n_max) + 1)
            yield replace(shrunk, menu=menu, sizes=sizes[span], rate=rates[span], limit=kept)
        if n_kept == present:  # otherwise it would give up nodes and take others: migration
            span = slice(
                max(trainer.n_min, present),
                min(trainer.n_max, int(grades.counts[in_menu].sum())) + 1,
            )
            yield replace(
                shrunk,
                menu=menu,
                sizes=sizes[span],
                rate=rates[span],
                cost=held * trainer.rescale_up_s,
                fixed=kept,
                limit=np.where(in_menu, grades.counts - own, 0),
                seconds=grades.joined_s[j],
                fixed_s=float(kept @ grades.kept_s),
            )


def _menus(grades: Grades, j: int) -> Iterator[tuple[int, BoolArray]]:
    """The grades trainer j may have together: of one class it accepts, or of all."""
    accepted = np.flatnonzero(grades.accepts[j])
    if not grades.trainers[j].mixes_classes:
        yield from ((int(k), grades.class_of == k) for k in accepted)
    elif len(accepted):
        yield 0, np.isin(grades.class_of, accepted)


def worth_at(rows: Rows, prices: FloatArray) -> FloatArray:
    """What each row is worth when every node it has must be paid for."""
    reduced = rows.profit - prices
    order = np.argsort(-reduced, axis=1)
    taken = _taken(rows, order)
    chosen = np.einsum("mg,mg->m", taken, np.take_along_axis(reduced, order, axis=1))
    worth: FloatArray = rows.constant + chosen - rows.fixed @ prices
    return worth


def used_at(rows: Rows, prices: FloatArray) -> IntArray:
    """[m, g]: nodes that each row takes at the prices, fixed ones included."""
    order = np.argsort(prices - rows.profit, axis=1)
    used = np.zeros_like(rows.limit)
    np.put_along_axis(used, order, _taken(rows, order), axis=1)
    used += rows.fixed
    return used


def _taken(rows: Rows, order: NDArray[np.intp]) -> IntArray:
    """How many of the grades in this order fill each row's need."""
    limit = np.take_along_axis(rows.limit, order, axis=1)
    before = np.cumsum(limit, axis=1)
    before -= limit
    taken: IntArray = np.minimum(np.maximum(rows.need[:, None] - before, 0), limit)
    return taken
