"""The quick way for small problems, in plain Python: a good answer, and every better one.

Takes what the sizes lose (``milp.exact.dual`` has the why) and returns the loss of a good
answer, or the sizes that lose least. On a handful of sizes the calls of the program in
``milp.exact.window`` would take longer than its work; both give the same sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from milp.exact.window import Near, Picks
from milp.tables import FloatArray, IntArray

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
        cells = cells[gains.take(cells).argpartition(-MAX_CELLS)[-MAX_CELLS:]]
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
