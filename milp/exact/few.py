"""Few sizes that matter: every way through them, in plain Python.

Takes Worths and a price of a node, returns the best sizes and what the pool is then worth,
or None where too many sizes matter. Called by ``milp.exact.columns``: on a handful of sizes
the calls of the program in ``milp.exact.core`` would take longer than its work. The steps:
the sizes that are best at the price, an answer from a few changes of these, and every way
that loses no more than that answer does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from milp.exact.worths import Worths
from milp.tables import FloatArray, IntArray

MAX_WORK = 1500  # sizes combined; beyond, arrays are quicker
MAX_CHANGES = 4  # trainers that leave their picks in a first answer
MAX_CELLS = 256  # sizes looked at for that

# Sizes taken, the first trainer's first: (size, those of the trainers after it).
Way: TypeAlias = tuple[int, "Way"] | None
Ways: TypeAlias = dict[int, tuple[float, Way]]  # by nodes used: least loss, and how


def solve_few(worths: Worths, price: float) -> tuple[IntArray, float, float] | None:
    """Best sizes, their value, and the best value with one node more.

    At any price >= 0 the answer is the same; at a good one few sizes matter.
    """
    allowed, tolerance = worths.allowed, worths.tolerance
    columns = np.arange(allowed.shape[1])
    losses = price * columns - allowed
    losses -= losses.min(axis=1)[:, None]
    # Of sizes that are equally good the smallest: what is left over is filled best.
    picks = (losses <= tolerance).argmax(axis=1)
    left = worths.capacity - int(picks.sum())
    if left < 0:
        return None
    noise = tolerance * (len(picks) + 2)  # a rescale more loses a tolerance more
    gap = first_gap(losses, columns - picks[:, None], price, left, tolerance) + noise
    rows, sizes = (losses <= gap).nonzero()
    keyed = losses[rows, sizes] + tolerance * (sizes != worths.present[rows])
    chosen = picks.tolist()
    options: dict[int, list[tuple[int, float]]] = {}  # the last trainer, its largest size first
    for row, size, loss in zip(
        rows[::-1].tolist(), sizes[::-1].tolist(), keyed[::-1].tolist(), strict=True
    ):
        if row in options:
            options[row].append((size, loss))
        else:
            options[row] = [(size, loss)]
    several = [row for row in options if len(options[row]) > 1]
    left += sum([chosen[row] for row in several])
    # Nodes that are not used lose their price.
    fewest = math.floor(left - min(gap / price, left)) if price > 0 else 0
    ways = _combine([options[row] for row in several], gap, tolerance / 4, (fewest, left + 1))
    if ways is None:
        return None
    several.reverse()
    every, answers = np.arange(len(chosen)), []
    for nodes in (left, left + 1):
        best = _least(ways, nodes, price, tolerance / 4)
        if best is None or best[0] > gap:
            return None
        sizes = picks.copy()
        sizes[several] = best[1]
        answers.append((sizes, float(allowed[every, sizes].sum())))
    (first, value), (_, value_of_larger) = answers
    return first, value, value_of_larger


def first_gap(
    losses: FloatArray, steps: IntArray, price: float, left: int, tolerance: float
) -> float:
    """What answers near the picks lose: few trainers leave them, one by one.

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
    """What is lost in the end when the largest gain that fits is taken, a few times.

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


def _combine(
    options: Sequence[Sequence[tuple[int, float]]],
    gap: float,
    fuzz: float,
    nodes: tuple[int, int],
) -> Ways | None:
    """All ways to take a size of each trainer, the last trainer first; None: too many.

    Sizes come with their losses, the largest first; ``nodes`` are the fewest and the most
    that all may use. Of equal losses (up to ``fuzz``) the way is kept that gives the earlier
    trainers more.
    """
    # By trainer, how far from these ends it can be when all up to it have chosen.
    fewest, most = nodes[0] - sum([o[0][0] for o in options]), nodes[1]
    most -= sum([o[-1][0] for o in options])
    ways: Ways = {0: (0.0, None)}
    work = 0
    for sizes in options:
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
                    if known is None or both < known[0] - fuzz:
                        ways[at] = (both, (size, way))
    return ways


def _least(ways: Ways, nodes: int, price: float, fuzz: float) -> tuple[float, list[int]] | None:
    """The way that loses least; nodes that are left over lose their price."""
    fitting = [
        (lost + price * (nodes - used), way) for used, (lost, way) in ways.items() if used <= nodes
    ]
    least = min([lost for lost, _ in fitting], default=None)
    if least is None:
        return None
    return least, max([_listed(way) for lost, way in fitting if lost <= least + fuzz])


def _listed(way: Way) -> list[int]:
    sizes: list[int] = []
    while way is not None:
        size, way = way
        sizes.append(size)
    return sizes
