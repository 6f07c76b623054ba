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
MAX_WORK = 1500  # sizes combined; beyond, arrays are quicker
MAX_CHANGES = 4  # trainers that leave their picks in an answer nearby
MAX_CELLS = 256  # sizes looked at for that

Picks = list[int]  # a size by undecided trainer, FCFS
# Sizes taken, the first trainer's first: (size, those of the trainers after it).
Way: TypeAlias = tuple[int, "Way"] | None
Ways: TypeAlias = dict[int, tuple[float, Way]]  # by nodes used: least loss, and how


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
        if 0 <= index < len(self.losses):
            return float(self.losses[index])
        return np.inf


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
    # Fewest and most nodes left for trainer j and those behind it; at last, for nobody.
    low, high = near.capacity, near.capacity + 1
    lows, highs = [max(low, 0)], [high]
    for own_sizes in sizes:
        low -= int(own_sizes[-1])
        high -= int(own_sizes[0])
        lows.append(max(low, 0))
        highs.append(high)
    program = _Program(near, sizes, losses, lows, highs)
    row = program.behind()
    stored_rows, spacing, n_cells = {near.n_trainers: row}, 1, 0
    for j in range(near.n_trainers - 1, -1, -1):
        row = program.step(j, row)
        n_cells += len(row.losses)
        if n_cells > STORED_CELLS and spacing == 1:
            spacing = max(2, math.isqrt(near.n_trainers))
            for i in list(stored_rows):
                if i % spacing and i != near.n_trainers:
                    del stored_rows[i]
        if j % spacing == 0:
            stored_rows[j] = row
    if max(row.at(near.capacity), row.at(near.capacity + 1)) > near.gap:
        return None
    return _walk(program, stored_rows)


def _walk(program: _Program, stored_rows: dict[int, _Row]) -> tuple[Picks, Picks]:
    """Read off the sizes for both numbers of nodes; rows not stored are made again, by block."""
    near, row = program.near, stored_rows.pop(0)
    picks: tuple[Picks, Picks] = ([], [])
    nodes_left = [near.capacity, near.capacity + 1]
    may_lose = [row.at(nodes) + near.noise for nodes in nodes_left]
    for j, (sizes, losses) in enumerate(zip(program.sizes, program.losses, strict=True)):
        if j + 1 not in stored_rows:
            next_stored = min([i for i in stored_rows if i > j])
            for i in range(next_stored - 1, j, -1):
                stored_rows[i] = program.step(i, stored_rows[i + 1])
        row_after = stored_rows.pop(j + 1)
        ways = list(zip(sizes.tolist(), losses.tolist(), strict=True))
        for answer, sizes_so_far in enumerate(picks):
            for size, loss in reversed(ways):
                if loss + row_after.at(nodes_left[answer] - size) <= may_lose[answer]:
                    sizes_so_far.append(size)
                    nodes_left[answer] -= size
                    may_lose[answer] -= loss
                    break
    return picks


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
    picks = _least_way(ways, near.capacity, near)
    picks_with_one_more = _least_way(ways, near.capacity + 1, near)
    if picks is None or picks_with_one_more is None:
        return None
    return picks, picks_with_one_more


def _combine(options: Sequence[Sequence[tuple[int, float]]], near: Near) -> Ways | None:
    """All ways within the gap to take a size of each trainer, the last trainer first.

    The largest sizes come first: of equal losses the way is kept that gives the earlier
    trainers more. None: too many.
    """
    # Nodes that are not used lose their price. The bounds are on what the trainers up to one use
    # together: the others must be able to use the rest, and it must be enough for them.
    fewest_used = 0
    if near.price > 0:
        fewest_used = math.floor(near.capacity - min(near.gap / near.price, near.capacity))
    most_used = near.capacity + 1
    for sizes in options:  # the largest first
        largest, _ = sizes[0]
        smallest, _ = sizes[-1]
        fewest_used -= largest
        most_used -= smallest
    gap, noise = near.gap, near.noise
    ways: Ways = {0: (0.0, None)}
    work = 0
    for sizes in reversed(options):
        work += len(sizes) * len(ways)
        if work > MAX_WORK:
            return None
        largest, _ = sizes[0]
        smallest, _ = sizes[-1]
        fewest_used += largest
        most_used += smallest
        ways_behind, ways = ways, {}
        # The innermost lines are most of the time of a small decision.
        for size, loss in sizes:
            for n_behind, (loss_behind, way) in ways_behind.items():
                total_loss, n_used = loss_behind + loss, n_behind + size
                if total_loss <= gap and fewest_used <= n_used <= most_used:
                    best = ways.get(n_used)
                    if best is None or total_loss < best[0] - noise:
                        ways[n_used] = (total_loss, (size, way))
    return ways


def _least_way(ways: Ways, nodes: int, near: Near) -> Picks | None:
    """The way that loses least; nodes that are left over lose their price."""
    least_loss = math.inf
    fitting_ways: list[tuple[float, Way]] = []
    for n_used, (loss, way) in ways.items():
        if n_used <= nodes:
            total_loss = loss + near.price * (nodes - n_used)
            fitting_ways.append((total_loss, way))
            least_loss = min(least_loss, total_loss)
    if least_loss > near.gap:
        return None
    most_lost = least_loss + near.noise
    return max([_sizes_of(way) for loss, way in fitting_ways if loss <= most_lost])


def _sizes_of(way: Way) -> Picks:
    sizes: Picks = []
    while way is not None:
        size, way = way
        sizes.append(size)
    return sizes


def gap_nearby(
    losses: FloatArray, steps: IntArray, price: float, nodes_left: int, tolerance: float
) -> float:
    """Return the loss of a good answer near the picks: few trainers leave them, one by one.

    ``steps`` lead from the picks to the sizes. Of the answer for ``nodes_left`` nodes and that for
    one more it is what loses more.
    """
    gains = price * steps
    gains -= losses
    cells = ((gains > 0) & (steps <= nodes_left + 1)).ravel().nonzero()[0]
    if len(cells) > MAX_CELLS:  # any changes make an answer, and the largest gains a good one
        of_cells = gains.take(cells)
        limit = np.partition(of_cells, -MAX_CELLS)[-MAX_CELLS]
        # Of equal ones the first: which of them argpartition takes hangs on the processor.
        cells = np.concatenate([cells[of_cells > limit], cells[of_cells == limit]])[:MAX_CELLS]
        cells.sort()
    rows, steps_of_cells = (cells // gains.shape[1]).tolist(), steps.take(cells).tolist()
    free_steps: dict[int, list[int]] = {}  # by row, those that cost nothing
    if nodes_left > 0:
        are_free = (losses.take(cells) <= tolerance).tolist()
        for row, step, is_free in zip(rows, steps_of_cells, are_free, strict=True):
            if is_free:
                free_steps.setdefault(row, []).append(step)
    gains_of_cells = gains.take(cells).tolist()
    changes = sorted(zip(gains_of_cells, steps_of_cells, rows, strict=True), reverse=True)
    gap = 0.0
    for nodes in (nodes_left, nodes_left + 1):
        missing, moved_rows = nodes, set[int]()
        for row, row_steps in free_steps.items():
            if fitting := [step for step in row_steps if step <= missing]:
                missing -= fitting[-1]
                moved_rows.add(row)
            if not missing:
                break
        loss = 0.0
        if missing:
            loss = _change(changes, price, missing, set(moved_rows))
        if moved_rows and loss > 0:
            loss = min(loss, _change(changes, price, nodes, set()))
        gap = max(gap, loss)
    return gap


def _change(
    changes: Sequence[tuple[float, int, int]], price: float, missing: int, moved_rows: set[int]
) -> float:
    """Return the loss left when the largest gain that fits is taken, a few times.

    ``changes`` are gains, steps and rows, the largest gain first: what does not fit once
    never will, as ever fewer nodes are missing.
    """
    loss, changes_left = price * missing, MAX_CHANGES
    for gain, step, row in changes:
        if step <= missing and row not in moved_rows:
            loss -= gain
            missing -= step
            changes_left -= 1
            if not (missing and changes_left):
                break
            moved_rows.add(row)
    return loss
