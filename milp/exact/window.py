"""A dynamic program over nodes: of the sizes within a gap those that lose least.

Takes for each undecided trainer a few sizes and what each loses (``milp.exact.dual`` has
the why), returns one size each. F_j(c) is the least loss of the trainers from j on with c
nodes; behind the last trainer F(c) = price c, for nodes left over. Then the sizes are read
off from the first trainer on, the largest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
            spacing = max(2, int(near.n_trainers**0.5))
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
