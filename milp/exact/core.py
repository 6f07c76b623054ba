"""The trainers that the price of a node does not settle: a dynamic program over losses.

Takes per trainer a few sizes and what each loses against the price, and how many nodes
there are; returns the sizes that lose least. Called by ``milp.exact.columns``. A node left
over loses the price. States that lose more than a known answer are dropped, so that few
remain. Ties: earlier trainers get more (rescales are part of the losses).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from milp.tables import FloatArray, IntArray

STORED_CELLS = 1 << 19  # 4 MB of states; beyond, most are dropped and computed again
FEW_CHOICES, FEW_WAYS = 16, 1 << 12  # all ways are tried as long as they are so few
GATHER_CELLS = 1 << 14  # up to so many candidates one gather is quicker than many slices


@dataclass(frozen=True, slots=True)
class CoreChoice:
    """The sizes one trainer chooses from, ascending, and what each loses."""

    sizes: IntArray
    losses: FloatArray


@dataclass(frozen=True, slots=True)
class _States:
    """Least loss of the trainers from j on by nodes they may use, from ``low`` on."""

    low: int
    losses: FloatArray

    def at(self, nodes: int) -> float:
        index = nodes - self.low
        return float(self.losses[index]) if 0 <= index < len(self.losses) else np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreAnswer:
    """Sizes for the nodes there are and for one more; None: nothing within the gap."""

    sizes: list[int] | None
    sizes_of_larger: list[int] | None


@dataclass(frozen=True, slots=True)
class _Core:
    choices: Sequence[CoreChoice]
    lows: list[int]  # [j]: fewest nodes that can be left when trainer j chooses
    highs: list[int]
    gaps: tuple[float, float]
    gap: float  # the larger one

    def step(self, j: int, after: _States) -> _States:
        """Put trainer j in front of the trainers after it."""
        choice = self.choices[j]
        sizes, losses = choice.sizes, choice.losses
        n_after = len(after.losses)
        low = max(self.lows[j], after.low + int(sizes[0]))
        high = min(self.highs[j], after.low + n_after - 1 + int(sizes[-1]))
        if high < low:
            return _States(low, np.empty(0))
        width = high - low + 1
        if len(sizes) > 4 and len(sizes) * width <= GATHER_CELLS:
            # States around the ones there are, so that every index is one.
            around = np.full(n_after + 2, np.inf)
            around[1:-1] = after.losses
            index = np.arange(low - after.low + 1, high - after.low + 2) - sizes[:, None]
            best = around.take(index, mode="clip")
            best += losses[:, None]
            best = best.min(axis=0)
        else:
            best = np.full(width, np.inf)
            for size, loss in zip(sizes.tolist(), losses.tolist(), strict=True):
                start = after.low + size - low  # where the first state after lands
                first, last = max(start, 0), min(start + n_after, width)
                if first < last:
                    part = best[first:last]
                    np.minimum(part, after.losses[first - start : last - start] + loss, out=part)
        live = (best <= self.gap).nonzero()[0]
        if not len(live):
            return _States(low, np.empty(0))
        first, last = int(live[0]), int(live[-1]) + 1
        return _States(low + first, best[first:last])


def solve_core(
    choices: Sequence[CoreChoice],
    capacity: int,
    price: float,
    gaps: tuple[float, float],
    tolerance: float,
) -> CoreAnswer:
    """Sizes whose sum, and loss with the price of what is left over, is least.

    Only answers within ``gaps`` are given, the second of which is for one node more.
    """
    if len(choices) <= FEW_CHOICES:
        answer = _try_all(choices, capacity, price, gaps, tolerance)
        if answer is not None:
            return answer
    least, most = [0], [0]
    for choice in choices:
        least.append(least[-1] + int(choice.sizes[0]))
        most.append(most[-1] + int(choice.sizes[-1]))
    core = _Core(
        choices=choices,
        lows=[max(capacity - used, 0) for used in most],
        highs=[capacity + 1 - used for used in least],
        gaps=gaps,
        gap=max(gaps),
    )
    end = _leftover(core, price)
    kept: dict[int, _States] = {len(choices): end}
    spacing = 1
    states, n_cells = end, 0
    for j in range(len(choices) - 1, -1, -1):
        states = core.step(j, states)
        n_cells += len(states.losses)
        if n_cells > STORED_CELLS and spacing == 1:
            spacing = max(2, int(len(choices) ** 0.5))
            kept = {i: one for i, one in kept.items() if i % spacing == 0}
        if j % spacing == 0:
            kept[j] = states
    kept.setdefault(len(choices), end)
    return _walk(core, kept, capacity, tolerance)


def _try_all(
    choices: Sequence[CoreChoice],
    capacity: int,
    price: float,
    gaps: tuple[float, float],
    tolerance: float,
) -> CoreAnswer | None:
    """All combinations within the gap, the first trainer's sizes outermost; None: too many."""
    used, lost = np.zeros(1, dtype=np.int64), np.zeros(1)
    kept: list[NDArray[np.intp]] = []
    for choice in choices:
        if len(used) * len(choice.sizes) > FEW_WAYS:
            return None
        lost = np.add.outer(lost, choice.losses).ravel()
        keep = (lost <= max(gaps)).nonzero()[0]
        lost = lost.take(keep)
        used = np.add.outer(used, choice.sizes).ravel().take(keep)
        kept.append(keep)
    found: list[list[int] | None] = []
    for nodes, gap in zip((capacity, capacity + 1), gaps, strict=True):
        left = nodes - used
        total = lost + price * left
        total[left < 0] = np.inf
        least = total.min(initial=np.inf)
        if least > gap:
            found.append(None)
            continue
        # The last of the ties has the largest sizes of the first trainers.
        way = int((total <= least + tolerance).nonzero()[0][-1])
        sizes: list[int] = []
        for choice, keep in zip(reversed(choices), reversed(kept), strict=True):
            way, pick = divmod(int(keep[way]), len(choice.sizes))
            sizes.append(int(choice.sizes[pick]))
        found.append(sizes[::-1])
    return CoreAnswer(sizes=found[0], sizes_of_larger=found[1])


def _leftover(core: _Core, price: float) -> _States:
    """What nodes that nobody takes lose."""
    low, high = core.lows[-1], core.highs[-1]
    if price > 0:
        high = min(high, int(core.gap / price) + 1)
    if high < low:
        return _States(low, np.empty(0))
    return _States(low, price * np.arange(low, high + 1, dtype=np.float64))


@dataclass(slots=True)
class _Cursor:
    """A way through the choices, first trainer first."""

    nodes: int  # not used yet
    allowed: float  # what the trainers from here on may lose
    sizes: list[int] = field(default_factory=list)

    def advance(self, choice: CoreChoice, after: _States) -> None:
        """Take the largest size that still leads to the least loss."""
        sizes, losses = choice.sizes[::-1].tolist(), choice.losses[::-1].tolist()
        for size, loss in zip(sizes, losses, strict=True):
            if loss + after.at(self.nodes - size) <= self.allowed:
                self.sizes.append(size)
                self.nodes -= size
                self.allowed -= loss
                return
        raise AssertionError("the states lead nowhere")


def _walk(core: _Core, kept: dict[int, _States], capacity: int, tolerance: float) -> CoreAnswer:
    """Both answers, with the states that were dropped computed again block by block."""
    cursors: list[_Cursor | None] = []
    for nodes, gap in zip((capacity, capacity + 1), core.gaps, strict=True):
        least = kept[0].at(nodes)
        cursors.append(_Cursor(nodes, least + tolerance) if least <= gap else None)
    for j, choice in enumerate(core.choices):
        if j + 1 not in kept:
            upto = min(i for i in kept if i > j)
            for i in range(upto - 1, j, -1):
                kept[i] = core.step(i, kept[i + 1])
        kept.pop(j, None)
        for cursor in cursors:
            if cursor is not None:
                cursor.advance(choice, kept[j + 1])
    first, second = (None if cursor is None else cursor.sizes for cursor in cursors)
    return CoreAnswer(sizes=first, sizes_of_larger=second)
