"""Dynamic program over used-node vectors: several node classes, one per trainer.

Takes per trainer a menu of (class, size) with what each loses against the prices of a
node, returns the best picks whose total loss, unused nodes included, is within a gap.
Called by the solver for several classes with a growing gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from milp.tables import BoolArray, FloatArray, IntArray

MAX_COMBINATIONS = 300_000  # states times options of one step: bounds memory and time


class TooManyStatesError(Exception):
    """The gap leaves more than can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Best picks, and what they lose against the prices."""

    picks: tuple[int, ...]
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _States:
    """Best ways for the trainers from j on to use exactly a vector of nodes."""

    used: IntArray  # [s, k]
    values: FloatArray
    losses: FloatArray  # against the prices
    rescales: IntArray
    ranks: IntArray  # order of their sizes in FCFS order, 0 = earlier trainers get more
    picks: IntArray  # index into the trainer's options
    parents: IntArray  # state of the trainers after j


@dataclass(frozen=True, slots=True, kw_only=True)
class Menu:
    """What one trainer can still choose from."""

    classes: IntArray
    sizes: IntArray
    values: FloatArray
    losses: FloatArray
    rescales: IntArray


def search(
    menus: Sequence[Menu],
    counts: IntArray,
    prices: FloatArray,
    *,
    gap: float,
    tolerance: float,
) -> Found | None:
    """Best picks that lose at most ``gap``; None: there are none.

    Trainers are taken last to first; a state is the vector of nodes used so far, with
    its best way there.

    Raises:
        TooManyStatesError: there are more states than the limit.
    """
    n_classes = len(counts)
    most = np.zeros((len(menus) + 1, n_classes), dtype=np.int64)  # by the trainers before j
    for j, menu in enumerate(menus):
        np.maximum.at(most[j + 1], menu.classes, menu.sizes)
    most = most.cumsum(axis=0)
    states = _no_trainer(n_classes)
    steps: list[_States] = []
    for j in range(len(menus) - 1, -1, -1):
        if len(states.values) * len(menus[j].sizes) > MAX_COMBINATIONS:
            raise TooManyStatesError
        extended = _extend(states, menus[j], tolerance, _Limit(counts, prices, gap, most[j]))
        if extended is None:
            return None
        states = extended
        steps.append(states)
    at = _best_state(states, tolerance)
    loss = float(states.losses[at] + (counts - states.used[at]) @ prices)
    picks: list[int] = []
    for step in reversed(steps):
        picks.append(int(step.picks[at]))
        at = int(step.parents[at])
    return Found(picks=tuple(picks), loss=loss)


def _no_trainer(n_classes: int) -> _States:
    zero = np.zeros(1, dtype=np.int64)
    return _States(
        used=np.zeros((1, n_classes), dtype=np.int64),
        values=np.zeros(1),
        losses=np.zeros(1),
        rescales=zero,
        ranks=zero,
        picks=zero,
        parents=zero,
    )


@dataclass(frozen=True, slots=True)
class _Limit:
    """What an answer may lose against the prices, unused nodes included."""

    counts: IntArray
    prices: FloatArray
    gap: float
    most_before: IntArray  # [k]: nodes the trainers not yet placed can use at most

    def allows(self, used: IntArray, losses: FloatArray) -> BoolArray:
        """Which states can still be part of an answer within the gap."""
        is_close = losses + self.idle(used) @ self.prices <= self.gap
        fits: BoolArray = is_close & (used <= self.counts).all(axis=1)
        return fits

    def idle(self, used: IntArray) -> IntArray:
        """Nodes by class that certainly stay unused."""
        left: IntArray = np.maximum(self.counts - used - self.most_before, 0)
        return left


def _extend(after: _States, menu: Menu, tolerance: float, limit: _Limit) -> _States | None:
    """Prepend a trainer: all states it leads to, each with its best way; None: no state."""
    n_options = len(menu.sizes)
    parents = np.repeat(np.arange(len(after.values)), n_options)
    picks = np.tile(np.arange(n_options), len(after.values))
    losses = after.losses[parents] + menu.losses[picks]
    kept = np.flatnonzero(losses <= limit.gap)
    parents, picks, losses = parents[kept], picks[kept], losses[kept]
    used = after.used[parents]
    used[np.arange(len(picks)), menu.classes[picks]] += menu.sizes[picks]
    kept = np.flatnonzero(limit.allows(used, losses))
    parents, picks, losses, used = parents[kept], picks[kept], losses[kept], used[kept]
    if not len(picks):
        return None
    strides = np.concatenate(([1], np.cumprod(limit.counts[:-1] + 1)))
    codes = used @ strides
    order = np.argsort(codes, kind="stable")
    codes, parents, picks = codes[order], parents[order], picks[order]
    values = after.values[parents] + menu.values[picks]
    rescales = after.rescales[parents] + menu.rescales[picks]
    # Ranks of equal sizes of this trainer follow those of the trainers after it.
    n_ranks = int(after.ranks.max()) + 1
    largest = int(menu.sizes.max())
    fcfs = (largest - menu.sizes[picks]) * n_ranks + after.ranks[parents]
    key = rescales * ((largest + 1) * n_ranks) + fcfs
    chosen = _best_per_code(codes, values, key, tolerance)
    _, ranks = np.unique(fcfs[chosen], return_inverse=True)
    return _States(
        used=used[order[chosen]],
        values=values[chosen],
        losses=losses[order[chosen]],
        rescales=rescales[chosen],
        ranks=ranks.astype(np.int64),
        picks=picks[chosen],
        parents=parents[chosen],
    )


def _best_per_code(
    codes: IntArray, values: FloatArray, key: IntArray, tolerance: float
) -> NDArray[np.intp]:
    """Per code (ascending): of the values equal to the greatest, the one of least key."""
    is_first = np.concatenate(([True], codes[1:] != codes[:-1]))
    starts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
    is_tied = values >= np.maximum.reduceat(values, starts)[group] - tolerance
    key = np.where(is_tied, key, np.iinfo(np.int64).max)
    winners = np.flatnonzero(key == np.minimum.reduceat(key, starts)[group])
    is_first = np.concatenate(([True], group[winners][1:] != group[winners][:-1]))
    return winners[is_first]


def _best_state(states: _States, tolerance: float) -> int:
    """The state of the best answer."""
    tied = np.flatnonzero(states.values >= states.values.max() - tolerance)
    return int(tied[np.lexsort((states.ranks[tied], states.rescales[tied]))[0]])
