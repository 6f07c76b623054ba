"""Whether given sizes fit into node classes, and how.

Takes the sizes and the classes each trainer may take them from; returns how many nodes
of which class each trainer gets, or None. Called by the solver for several classes:
when the best sizes of the pools taken together fit, they are the best.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milp.tables import BoolArray, IntArray

MAX_CELLS = 64_000_000  # bytes for the tables of used nodes; beyond, nothing is said to fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a trainer that mixes classes needs: nodes it keeps, and others of some classes."""

    trainer: int
    fixed: tuple[int, ...]  # [k]
    free: int  # further nodes, at most room[k] of class k
    room: tuple[int, ...]

    def least(self, subset: Sequence[int]) -> int:
        """Fewest nodes of these classes it can do with."""
        elsewhere = sum(n for k, n in enumerate(self.room) if k not in subset)
        return sum(self.fixed[k] for k in subset) + max(0, self.free - elsewhere)


def pack(
    sizes: IntArray, may_take: BoolArray, counts: Sequence[int], demands: Sequence[Demand] = ()
) -> list[int] | None:
    """Choose for each trainer a class k with ``may_take[k, j]``; sums within ``counts``.

    Trainers in ``demands`` are to have size 0 here. Exact: walks back from the last
    trainer over the nodes used in all classes but the last (what the last one holds
    follows from the sum of sizes). Earlier trainers get the lower class.
    """
    settled = (may_take.sum(axis=0) == 1) & (sizes > 0)
    home = may_take.argmax(axis=0)
    taken = np.bincount(home[settled], weights=sizes[settled], minlength=len(counts))
    left = (np.asarray(counts) - taken.astype(np.int64)).tolist()
    if min(left) < 0:
        return None
    classes = _choose(np.where(settled, 0, sizes), may_take, left, demands)
    if classes is None:
        return None
    return [int(home[j]) if settled[j] else k for j, k in enumerate(classes)]


def _choose(
    sizes: IntArray, may_take: BoolArray, counts: Sequence[int], demands: Sequence[Demand]
) -> list[int] | None:
    last = len(counts) - 1
    shape = tuple(count + 1 for count in counts[:last])
    if np.prod(shape, dtype=np.float64) * (1 + np.count_nonzero(sizes)) > MAX_CELLS:
        return None
    can = _leaves_enough(int(sizes.sum()), shape, counts, demands)
    after = [can]  # after[-1][used]: the trainers looked at so far still fit
    for j in range(len(sizes) - 1, -1, -1):
        size = int(sizes[j])
        if size == 0:
            after.append(can)
            continue
        could = can.copy() if may_take[last, j] else np.zeros_like(can)
        for k in range(last):
            if may_take[k, j]:
                to, origin = _shift(len(shape), k, size)
                could[to] |= can[origin]
        can = could
        after.append(can)
    used = [0] * last
    if not can[tuple(used)]:
        return None
    after.reverse()
    classes = [0] * len(sizes)
    for j, size in enumerate(sizes.tolist()):
        if size == 0:
            continue
        for k in range(last + 1):
            moved = tuple(u + size * (k == i) for i, u in enumerate(used))
            in_range = all(u < width for u, width in zip(moved, shape, strict=True))
            if may_take[k, j] and in_range and after[j + 1][moved]:
                classes[j], used = k, list(moved)
                break
    return classes


def _leaves_enough(
    total: int, shape: tuple[int, ...], counts: Sequence[int], demands: Sequence[Demand]
) -> BoolArray:
    """By used nodes, whether the last class holds the rest and the demands are met.

    They are met exactly when no set of classes is asked for more than it has left.
    """
    used = list(np.indices(shape)) if shape else [np.zeros((), dtype=np.int64)]
    elsewhere = np.add.reduce(used)
    every = [*used[: len(shape)], total - elsewhere]
    can = np.asarray(every[-1] <= counts[-1], dtype=np.bool_)
    if demands:
        for n_classes in range(1, len(counts) + 1):
            for subset in itertools.combinations(range(len(counts)), n_classes):
                least = sum(demand.least(subset) for demand in demands)
                taken = np.add.reduce([every[k] for k in subset])
                can &= taken + least <= sum(counts[k] for k in subset)
    return can


def _shift(n_axes: int, axis: int, by: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Slices that pair each cell with the one ``by`` further along an axis."""
    to = tuple(slice(None, -by) if i == axis else slice(None) for i in range(n_axes))
    origin = tuple(slice(by, None) if i == axis else slice(None) for i in range(n_axes))
    return to, origin


def meet(demands: Sequence[Demand], left: Sequence[int]) -> list[list[int]] | None:
    """Nodes of each class for each demand, within ``left``; None: there are too few.

    Demands in order, lower classes first; where that runs dry, nodes given before are
    exchanged for others (augmenting paths).
    """
    spare = list(left)
    given = [[0] * len(left) for _ in demands]
    for demand in demands:
        for k, n_fixed in enumerate(demand.fixed):
            spare[k] -= n_fixed
    if min(spare, default=0) < 0:
        return None
    for i, demand in enumerate(demands):
        need = demand.free
        while need:
            path = _find_path(demands, given, spare, i)
            if path is None:
                return None
            need -= _exchange(demands, given, spare, path, need)
    return [
        [n_fixed + n_given for n_fixed, n_given in zip(demand.fixed, row, strict=True)]
        for demand, row in zip(demands, given, strict=True)
    ]


_Path = list[tuple[int, int]]  # (demand, class it receives a node of), first to last


def _find_path(
    demands: Sequence[Demand], given: list[list[int]], spare: list[int], start: int
) -> _Path | None:
    """Shortest chain: each receives of a class that the next one gives up, the last a spare."""
    reached: dict[int, tuple[int, int] | None] = {start: None}  # demand <- (demand, class)
    queue = [start]
    seen: set[int] = set()
    for i in queue:
        for k in range(len(spare)):
            if k in seen or given[i][k] >= demands[i].room[k]:
                continue
            seen.add(k)
            if spare[k] > 0:
                path = [(i, k)]
                step = reached[i]
                while step is not None:
                    path.append(step)
                    step = reached[step[0]]
                return path[::-1]
            for other, row in enumerate(given):
                if row[k] > 0 and other not in reached:
                    reached[other] = (i, k)
                    queue.append(other)
    return None


def _exchange(
    demands: Sequence[Demand], given: list[list[int]], spare: list[int], path: _Path, need: int
) -> int:
    """Move as many nodes as the chain allows; return how many."""
    amount = min(need, spare[path[-1][1]])
    amount = min([amount, *(demands[i].room[k] - given[i][k] for i, k in path)])
    following = path[1:]
    amount = min([amount, *(given[i][k] for (_, k), (i, _) in zip(path, following, strict=False))])
    for i, k in path:
        given[i][k] += amount
    for (_, k), (i, _) in zip(path, following, strict=False):
        given[i][k] -= amount
    spare[path[-1][1]] -= amount
    return amount
