"""The allocation problem over several node classes, and what is close to its prices.

Takes Options and a PoolView; gives, at prices per class, the bound and per trainer the
choices of size and class that lose little against it. Used by the solver for classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from milp.classes.packing import Demand
from milp.classes.prices import Taken
from milp.classes.vector_bound import KIND_BITS, MARKED, Menu
from milp.options import Options
from milp.pool import PoolView
from milp.tables import BoolArray, FloatArray, IntArray

INNER_STEPS = 64  # nodes exchanged at most to no loss
MAX_SPLITS = 200_000  # ways to keep some of the nodes held in several classes


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """A trainer that may have nodes of several classes at once."""

    held: tuple[int, ...]  # [k]: present nodes of classes it accepts
    accepts: tuple[int, ...]  # classes, ascending

    def demand(self, trainer: int, size: int, n_nodes: int) -> Demand:
        """What it needs for a size: a grower keeps all it has, a shrinker takes none."""
        n_held, n_classes = sum(self.held), len(self.held)
        if size < n_held:
            return Demand(trainer=trainer, fixed=(0,) * n_classes, free=size, room=self.held)
        room = tuple(n_nodes if k in self.accepts else 0 for k in range(n_classes))
        return Demand(trainer=trainer, fixed=self.held, free=size - n_held, room=room)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Values by class, trainer and size; a mixing trainer has one row, ``totals``."""

    allowed: FloatArray  # [k, j, n]; -inf in all rows of mixing trainers
    totals: FloatArray  # [j, n]: the best over classes
    current: IntArray
    counts: IntArray
    mixed: Mapping[int, Mixed]
    tolerance: float

    def merged(self, block_of: Sequence[int]) -> Instance:
        """The same with some classes taken for one: all that was possible still is."""
        n_blocks = max(block_of) + 1
        blocks = [[k for k, b in enumerate(block_of) if b == i] for i in range(n_blocks)]
        allowed = np.stack([self.allowed[block].max(axis=0) for block in blocks])
        mixed: dict[int, Mixed] = {}
        for j, one in self.mixed.items():
            accepts = sorted({block_of[k] for k in one.accepts})
            if len(accepts) == 1:
                allowed[accepts[0], j] = self.totals[j]
                # Size 0 is in class 0 only.
                allowed[accepts[0], j, 0] = -np.inf
                allowed[0, j, 0] = self.totals[j, 0]
            else:
                held = tuple(sum(one.held[k] for k in block) for block in blocks)
                mixed[j] = Mixed(held=held, accepts=tuple(accepts))
        return Instance(
            allowed=allowed,
            totals=self.totals,
            current=self.current,
            counts=np.array([self.counts[block].sum() for block in blocks]),
            mixed=mixed,
            tolerance=self.tolerance,
        )


def build_instance(options: Options, pool: PoolView) -> Instance:
    """Tell mixing trainers, which have a row of their own, from the others."""
    allowed = options.allowed.copy()
    mixed: dict[int, Mixed] = {}
    for j, mixes in enumerate(pool.mixes):
        accepts = tuple(k for k, is_mine in enumerate(pool.accepts[j]) if is_mine)
        if mixes and len(accepts) > 1:
            held = tuple(n if k in accepts else 0 for k, n in enumerate(pool.held[j]))
            mixed[j] = Mixed(held=held, accepts=accepts)
            allowed[:, j] = -np.inf
    return Instance(
        allowed=allowed,
        totals=options.allowed.max(axis=0),
        current=options.current,
        counts=np.asarray(options.counts, dtype=np.int64),
        mixed=mixed,
        tolerance=options.tolerance,
    )


class Priced:
    """What every choice loses against the best of its trainer, at prices per class."""

    def __init__(self, instance: Instance, prices: FloatArray) -> None:
        self._instance = instance
        self.prices = prices
        allowed = instance.allowed
        columns = np.arange(allowed.shape[2])
        reduced = allowed - prices[:, None, None] * columns
        self.best = reduced.max(axis=(0, 2), initial=-np.inf)
        self._mixed_losses: dict[int, FloatArray] = {}
        for j, one in instance.mixed.items():
            row = instance.totals[j] - _cost(one, prices, allowed.shape[2])
            self.best[j] = row.max()
            self._mixed_losses[j] = self.best[j] - row
        with np.errstate(invalid="ignore"):
            self._losses = self.best[:, None, None] - reduced.transpose(1, 0, 2)
        self.bound = float(self.best.sum() + prices @ instance.counts)
        self._inner = _inner(allowed, instance.current[:, None], instance.tolerance)

    def menu(self, j: int, gap: float, dividing: Sequence[tuple[int, ...]]) -> Menu:
        """All choices of a trainer that lose no more than the gap; sizes ascend."""
        one = self._instance.mixed.get(j)
        n_classes = len(self.prices)
        if one is not None:
            return self._mixed_menu(j, one, gap, dividing)
        sizes, classes = np.nonzero(gap >= self._losses[j].T)
        uses = np.zeros((len(sizes), n_classes + len(dividing)), dtype=np.int64)
        uses[np.arange(len(sizes)), classes] = sizes
        return Menu(
            trainer=j,
            classes=classes,
            sizes=sizes,
            uses=uses,
            values=self._instance.allowed[classes, j, sizes],
            losses=self._losses[j, classes, sizes],
            rescales=(sizes != self._instance.current[j]).astype(np.int64),
            inner=_mark(self._inner[classes, j, sizes], classes),
        )

    def _mixed_menu(
        self, j: int, one: Mixed, gap: float, dividing: Sequence[tuple[int, ...]]
    ) -> Menu:
        n_classes, n_held = len(self.prices), sum(one.held)
        losses = self._mixed_losses[j]
        sizes = np.flatnonzero(losses <= gap)
        grown = sizes[sizes >= n_held]
        uses = np.zeros((len(grown), n_classes + len(dividing)), dtype=np.int64)
        uses[:, :n_classes] = one.held
        pot = n_classes + dividing.index(one.accepts)
        uses[:, pot] = grown - n_held
        kept, floor = _splits(one.held, sizes[sizes < n_held])
        shrunk = np.zeros((len(kept), uses.shape[1]), dtype=np.int64)
        shrunk[:, :n_classes] = kept
        uses = np.concatenate([shrunk, uses])
        sizes = np.concatenate([kept.sum(axis=1), grown])
        # A split may be dearer than the cheapest of its size.
        values = self._instance.totals[j, sizes]
        cheapest = values - (self.best[j] - losses[sizes])
        all_losses = losses[sizes]
        is_kept = np.arange(len(sizes)) < len(kept)
        all_losses = all_losses + np.where(
            is_kept, uses[:, :n_classes] @ self.prices - cheapest, 0.0
        )
        near = np.flatnonzero(all_losses <= gap)
        current = self._instance.current[j]
        inner = _inner(self._instance.totals[j], current, self._instance.tolerance)
        is_inner = inner[sizes] & (sizes > n_held)
        return Menu(
            trainer=j,
            classes=np.zeros(len(near), dtype=np.int64),
            sizes=sizes[near],
            uses=uses[near],
            values=values[near],
            losses=all_losses[near],
            rescales=(sizes[near] != self._instance.current[j]).astype(np.int64),
            inner=_mark(is_inner[near], np.full(len(near), pot)),
            floor=floor,
        )


def _inner(values: FloatArray, current: IntArray, tolerance: float) -> BoolArray:
    """Sizes whose neighbours are together worth no less than they twice (last axis)."""
    inner = np.zeros(values.shape, dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        bend = values[..., 3:] - 2 * values[..., 2:-1] + values[..., 1:-2]
    # Far below what counts as equal: exchanges of many nodes must not add up.
    inner[..., 2:-1] = np.isfinite(bend) & (bend >= -tolerance / INNER_STEPS)
    inner &= np.arange(values.shape[-1]) != current
    return inner


def _mark(is_inner: BoolArray, dimensions: IntArray) -> IntArray:
    """A bit for inner sizes, by dimension; those beyond the last bit go unmarked."""
    is_marked = (is_inner & (dimensions < MARKED)).astype(np.int64)
    marks: IntArray = is_marked << (KIND_BITS * np.minimum(dimensions, MARKED))
    return marks


def _cost(one: Mixed, prices: FloatArray, width: int) -> FloatArray:
    """The least that 0, 1, ... nodes cost a mixing trainer."""
    accepted = sorted(one.accepts, key=lambda k: float(prices[k]))
    each = np.full(width, prices[accepted[0]])
    at = 1
    for k in accepted:
        each[at : at + one.held[k]] = prices[k]
        at += one.held[k]
    each[0] = 0.0
    return np.cumsum(each)


def _splits(held: Sequence[int], sizes: IntArray) -> tuple[IntArray, float]:
    """Ways to keep so many of the held nodes; 0.0 beside them if some are left out."""
    none = np.zeros((0, len(held)), dtype=np.int64)
    if not len(sizes):
        return none, np.inf
    n_splits = int(np.prod([n + 1.0 for n in held]))
    if n_splits > MAX_SPLITS:
        # Keep the lower classes, then the higher ones: feasible, no claim beyond.
        some = np.stack([_keep_in_order(held[:: 1 if up else -1], sizes, up) for up in (0, 1)])
        return np.unique(some.reshape(-1, len(held)), axis=0), 0.0
    every = np.stack([axis.ravel() for axis in np.indices([n + 1 for n in held])], axis=1)
    every = every[np.isin(every.sum(axis=1), sizes)]
    return every[np.argsort(every.sum(axis=1), kind="stable")], np.inf


def _keep_in_order(held: Sequence[int], sizes: IntArray, up: int) -> IntArray:
    before = np.concatenate(([0], np.cumsum(held)[:-1]))
    kept = np.clip(sizes[:, None] - before, 0, np.asarray(held))
    return kept if up else kept[:, ::-1]


class Buyers:
    """What all trainers take by themselves at given prices; for finding the prices."""

    def __init__(self, instance: Instance) -> None:
        n_classes, n_trainers, self._width = instance.allowed.shape
        self._instance = instance
        self._rows = np.arange(n_trainers)
        self._n_classes = n_classes
        self._flat = np.ascontiguousarray(instance.allowed.transpose(1, 0, 2)).reshape(
            n_trainers, -1
        )
        self._columns = np.arange(self._width, dtype=np.float64)

    def take(self, prices: FloatArray) -> Taken:
        """Value and usage of the best choices."""
        reduced = self._flat - np.multiply.outer(prices, self._columns).ravel()
        picks = reduced.argmax(axis=1)
        for j in self._instance.mixed:
            picks[j] = 0  # they follow
        sizes = picks % self._width
        usage = np.zeros(self._n_classes)
        usage += np.bincount(picks // self._width, weights=sizes, minlength=self._n_classes)
        values = self._flat[self._rows, picks]
        for j, one in self._instance.mixed.items():
            row = self._instance.totals[j]
            size = int((row - _cost(one, prices, self._width)).argmax())
            values[j] = row[size]
            usage += self._cheapest(one, prices, size)
        return Taken(value=float(values.sum()), usage=usage)

    def _cheapest(self, one: Mixed, prices: FloatArray, size: int) -> FloatArray:
        usage = np.zeros(self._n_classes)
        accepted = sorted(one.accepts, key=lambda k: float(prices[k]))
        left = size
        for k in accepted:
            usage[k] = min(left, one.held[k])
            left -= int(usage[k])
        usage[accepted[0]] += left
        return usage
