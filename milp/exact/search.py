"""The sizes within a gap that lose least: a dynamic program over nodes, and a quick way for few.

Takes for each undecided trainer a few sizes and what each loses (``milp.exact.dual`` has
the why), returns one size each. F_j(c) is the least loss of the trainers from j on with c
nodes; behind the last trainer F(c) = price c, for nodes left over. Then the sizes are read
off from the first trainer on, the largest first.

On a handful of sizes the calls of that program would take longer than its work: then plain Python
combines them all, with the same sizes as the answer. ``gap_nearby`` is the loss of a good answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from milp.tables import FloatArray, IntArray

STORED_CELLS = 1 << 20  # of F (8 MB); beyond, every so many rows are kept, the rest twice made
GATHERED_CELLS = 1 << 14  # up to so many sums one gather is quicker than many slices

Picks = list[int]  # a size by undecided trainer, FCFS


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """The sizes that lose at most ``gap``, of trainers that have several."""

    n_trainers: int
    rows: IntArray  # [i]: whose, ascending
    sizes: IntArray  # [i]: ascending by trainer
    losses: FloatArray  # [i]: >= 0, with a tolerance more for a rescale
    capacity: int  # nodes for these trainers
    price: float  # that a node left over loses
    gap: float
    noise: float  # losses that differ by less are the same


@dataclass(frozen=True, slots=True)
class _Row:
    """F_j(c) for c = low, low + 1, ...; elsewhere it is beyond the gap."""

    low: int
    losses: FloatArray

    def at(self, nodes: int) -> float:
        index = nodes - self.low
        return float(self.losses[index]) if 0 <= index < len(self.losses) else np.inf


@dataclass(frozen=True, slots=True)
class _Program:
    near: Near
    sizes: Sequence[IntArray]  # [j]
    losses: Sequence[FloatArray]
    lows: Sequence[int]  # [j]: fewest nodes that can be left when trainer j chooses
    highs: Sequence[int]

    def behind(self) -> _Row:
        """Return the losses of nodes that no trainer takes."""
        near, low, high = self.near, self.lows[-1], self.highs[-1]
        if near.price > 0:
            high = min(high, int(near.gap / near.price) + 1)
        return _Row(low, near.price * np.arange(low, max(low, high + 1), dtype=np.float64))

    def step(self, j: int, after: _Row) -> _Row:
        """F_j from F_(j+1)."""
        sizes, losses, n_after = self.sizes[j], self.losses[j], len(after.losses)
        low = max(self.lows[j], after.low + int(sizes[0]))
        width = min(self.highs[j], after.low + n_after - 1 + int(sizes[-1])) - low + 1
        if width <= 0 or not n_after:
            return _Row(low, np.empty(0))
        if len(sizes) * width <= GATHERED_CELLS:
            around = np.full(n_after + 2, np.inf)  # so that every index is one
            around[1:-1] = after.losses
            index = np.arange(low - after.low + 1, low - after.low + 1 + width) - sizes[:, None]
            best = (around.take(index, mode="clip") + losses[:, None]).min(axis=0)
        else:
            best = np.full(width, np.inf)
            for size, loss in zip(sizes.tolist(), losses.tolist(), strict=True):
                start = after.low + size - low  # where the first cell behind comes to be
                first, last = max(start, 0), min(start + n_after, width)
                if first < last:
                    part = best[first:last]
                    np.minimum(part, after.losses[first - start : last - start] + loss, out=part)
        live = (best <= self.near.gap).nonzero()[0]
        if not len(live):
            return _Row(low, np.empty(0))
        first, last = int(live[0]), int(live[-1]) + 1
        return _Row(low + first, best[first:last])


def search_window(near: Near) -> tuple[Picks, Picks] | None:
    """Sizes for the nodes there are and for one more; None: nothing within the gap."""
    ends = near.rows.searchsorted(np.arange(1, near.n_trainers))
    sizes, losses = np.split(near.sizes, ends), np.split(near.losses, ends)
    if not near.n_trainers:
        sizes, losses = [], []
    least, most = [0], [0]  # nodes that the trainers before j use
    for own in sizes:
        least.append(least[-1] + int(own[0]))
        most.append(most[-1] + int(own[-1]))
    lows = [max(near.capacity - used, 0) for used in most]
    highs = [near.capacity + 1 - used for used in least]
    program = _Program(near, sizes, losses, lows, highs)
    row = program.behind()
    kept, spacing, n_cells = {near.n_trainers: row}, 1, 0
    for j in range(near.n_trainers - 1, -1, -1):
        row = program.step(j, row)
        n_cells += len(row.losses)
        if n_cells > STORED_CELLS and spacing == 1:
            spacing = max(2, math.isqrt(near.n_trainers))
            kept = {i: one for i, one in kept.items() if i % spacing == 0 or i == near.n_trainers}
        if j % spacing == 0:
            kept[j] = row
    if max(row.at(near.capacity), row.at(near.capacity + 1)) > near.gap:
        return None
    return _walk(program, kept)


def _walk(program: _Program, kept: dict[int, _Row]) -> tuple[Picks, Picks]:
    """Read off the sizes, twice at once; rows that were not kept are made again, by block."""
    near, first = program.near, kept.pop(0)
    picks: tuple[Picks, Picks] = ([], [])
    left = [near.capacity, near.capacity + 1]
    may_lose = [first.at(nodes) + near.noise for nodes in left]
    for j, (sizes, losses) in enumerate(zip(program.sizes, program.losses, strict=True)):
        if j + 1 not in kept:
            upto = min(i for i in kept if i > j)
            for i in range(upto - 1, j, -1):
                kept[i] = program.step(i, kept[i + 1])
        after, ways = kept.pop(j + 1), list(zip(sizes.tolist(), losses.tolist(), strict=True))
        for one, own in enumerate(picks):
            for size, loss in reversed(ways):
                if loss + after.at(left[one] - size) <= may_lose[one]:
                    own.append(size)
                    left[one] -= size
                    may_lose[one] -= loss
                    break
    return picks


MAX_WORK = 1500  # sizes combined; beyond, arrays are quicker
MAX_CHANGES = 4  # trainers that leave their picks in an answer nearby
MAX_CELLS = 256  # sizes looked at for that

# Sizes taken, the first trainer's first: (size, those of the trainers after it).
Way: TypeAlias = tuple[int, "Way"] | None
Ways: TypeAlias = dict[int, tuple[float, Way]]  # by nodes used: least loss, and how


def search_few(near: Near) -> tuple[Picks, Picks] | None:
    """Sizes for the nodes there are and for one more; None: too many ways, or none."""
    if len(near.rows) > MAX_WORK:
        return None
    options: list[list[tuple[int, float]]] = [[] for _ in range(near.n_trainers)]
    rows, sizes, losses = near.rows.tolist(), near.sizes.tolist(), near.losses.tolist()
    for row, size, loss in zip(reversed(rows), reversed(sizes), reversed(losses), strict=True):
        options[row].append((size, loss))
    ways = _combine(options, near)
    if ways is None:
        return None
    least = [_least(ways, nodes, near) for nodes in (near.capacity, near.capacity + 1)]
    first, larger = least
    return None if first is None or larger is None else (first, larger)


def _combine(options: Sequence[Sequence[tuple[int, float]]], near: Near) -> Ways | None:
    """All ways within the gap to take a size of each trainer, the last trainer first.

    The largest sizes come first: of equal losses the way is kept that gives the earlier
    trainers more. None: too many.
    """
    # Nodes that are not used lose their price. By trainer, how far from the ends of what
    # all may use it can be when all up to it have chosen.
    fewest, most = 0, near.capacity + 1 - sum([sizes[-1][0] for sizes in options])
    if near.price > 0:
        fewest = math.floor(near.capacity - min(near.gap / near.price, near.capacity))
    fewest -= sum([sizes[0][0] for sizes in options])
    gap, noise = near.gap, near.noise
    ways: Ways = {0: (0.0, None)}
    work = 0
    for sizes in reversed(options):
        work += len(sizes) * len(ways)
        if work > MAX_WORK:
            return None
        fewest += sizes[0][0]
        most += sizes[-1][0]
        after, ways = ways, {}
        for size, loss in sizes:
            for used, (lost, way) in after.items():
                both, at = lost + loss, used + size
                if both <= gap and fewest <= at <= most:
                    known = ways.get(at)
                    if known is None or both < known[0] - noise:
                        ways[at] = (both, (size, way))
    return ways


def _least(ways: Ways, nodes: int, near: Near) -> Picks | None:
    """The way that loses least; nodes that are left over lose their price."""
    fitting = [
        (lost + near.price * (nodes - used), way)
        for used, (lost, way) in ways.items()
        if used <= nodes
    ]
    least = min([lost for lost, _ in fitting], default=math.inf)
    if least > near.gap:
        return None
    return max([_listed(way) for lost, way in fitting if lost <= least + near.noise])


def _listed(way: Way) -> Picks:
    sizes: Picks = []
    while way is not None:
        size, way = way
        sizes.append(size)
    return sizes


def gap_nearby(
    losses: FloatArray, steps: IntArray, price: float, left: int, tolerance: float
) -> float:
    """Return the loss of a good answer near the picks: few trainers leave them, one by one.

    ``steps`` lead from the picks to the sizes. Of the answer for ``left`` nodes and that for
    one more it is what loses more.
    """
    gains = price * steps
    gains -= losses
    cells = ((gains > 0) & (steps <= left + 1)).ravel().nonzero()[0]
    if len(cells) > MAX_CELLS:  # any changes make an answer, and the largest gains a good one
        of_cells = gains.take(cells)
        least = np.partition(of_cells, -MAX_CELLS)[-MAX_CELLS]
        # Of equal ones the first: which of them argpartition takes hangs on the processor.
        cells = np.concatenate([cells[of_cells > least], cells[of_cells == least]])[:MAX_CELLS]
        cells.sort()
    rows, ways = (cells // gains.shape[1]).tolist(), steps.take(cells).tolist()
    free = (losses.take(cells) <= tolerance).tolist() if left > 0 else []
    tied: dict[int, list[int]] = {}
    for row, step, costs_nothing in zip(rows, ways, free, strict=False):
        if costs_nothing:
            tied.setdefault(row, []).append(step)
    changes = sorted(zip(gains.take(cells).tolist(), ways, rows, strict=True), reverse=True)
    gap = 0.0
    for nodes in (left, left + 1):
        missing, moved = nodes, set[int]()
        for row, to in tied.items():  # first what costs nothing
            if fitting := [step for step in to if step <= missing]:
                missing -= fitting[-1]
                moved.add(row)
            if not missing:
                break
        lost = _change(changes, price, missing, set(moved)) if missing else 0.0
        if moved and lost > 0:
            lost = min(lost, _change(changes, price, nodes, set()))
        gap = max(gap, lost)
    return gap


def _change(
    changes: Sequence[tuple[float, int, int]], price: float, missing: int, moved: set[int]
) -> float:
    """Return the loss left when the largest gain that fits is taken, a few times.

    ``changes`` are gains, steps and rows, the largest gain first: what does not fit once
    never will, as ever fewer nodes are missing.
    """
    lost, turns = price * missing, MAX_CHANGES
    for gain, step, row in changes:
        if step <= missing and row not in moved:
            lost -= gain
            missing -= step
            turns -= 1
            if not (missing and turns):
                break
            moved.add(row)
    return lost
