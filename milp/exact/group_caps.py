"""One pool under caps of groups, exactly: a group is a trainer whose values are its best.

Takes values by trainer and size, as ``milp.exact.dual`` does, and caps of which two have no
trainer in common or one lies within the other. Within a cap, G(c) is the most that its members
are worth with c nodes at most: the max-plus convolution of their values, cut off at the cap. A
group is then one more row of the pool, of sizes up to its cap. The pool is solved, and what a
group was given is shared out among its members the same way.

A trainer that must run has its n_min nodes beforehand: its row begins there.

Ties: fewest rescales; then larger sizes for earlier trainers, within a group and between groups,
which stand where their first trainer does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from milp.exact.dual import PoolAnswer, solve_pool
from milp.tables import BoolArray, FloatArray, IntArray

BLOCK = 1 << 18  # sums made at once: 2 MB

Members: TypeAlias = tuple[int, ...]  # trainers, ascending


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Row:
    """The sizes of a trainer or a group beyond ``base`` nodes, which it has in any case."""

    base: int
    values: FloatArray  # [n]: with base + n nodes
    current: int  # C_j - base; -1: none of the sizes
    trainer: int = -1  # -1: a group
    rows: tuple[_Row, ...] = ()  # of the group's members


class Infeasible(Exception):  # noqa: N818 - what the caps are with trainers that must run
    """The trainers that must run do not fit."""


def solve_nested(
    allowed: FloatArray,
    current: IntArray,
    must_run: BoolArray,
    caps: Sequence[tuple[Members, int]],
    capacity: int,
    tolerance: float,
) -> PoolAnswer:
    """Maximise the sum of values under the capacity and the caps, in nodes.

    Args:
        allowed: [j, n], -inf where trainer j may not have size n.
        current: C_j.
        must_run: trainers that may not have size 0.
        caps: members and how many nodes they have at most; ``is_nested`` holds of them.
        capacity: nodes there are.
        tolerance: what a rescale costs where nothing else tells answers apart.

    Raises:
        Infeasible: those that must run do not fit.
    """
    leaves = [
        _leaf(j, row, int(n_current), is_bound=bool(is_bound))
        for j, (row, n_current, is_bound) in enumerate(zip(allowed, current, must_run, strict=True))
    ]
    rows = _grouped(leaves, caps, tolerance)
    sizes = np.zeros(len(leaves), dtype=np.int64)
    found = _share(rows, capacity, tolerance, sizes)
    more = found.value_of_one_more - found.value
    value = math.fsum(allowed[np.arange(len(leaves)), sizes].tolist())
    return PoolAnswer(sizes=sizes, value=value, value_of_one_more=value + max(more, 0.0))


def is_nested(caps: Sequence[tuple[Members, int]]) -> bool:
    """Return whether of any two caps with a common trainer one lies within the other."""
    sets = [frozenset(members) for members, _ in caps]
    return all(
        not one & other or one <= other or other <= one
        for i, one in enumerate(sets)
        for other in sets[:i]
    )


def _leaf(j: int, row: FloatArray, n_current: int, *, is_bound: bool) -> _Row:
    base = 0
    if is_bound:
        sizes = np.flatnonzero(row[1:] > -np.inf)
        if not len(sizes):
            raise Infeasible
        base = int(sizes[0]) + 1
    last = int(np.flatnonzero(row > -np.inf)[-1])
    return _Row(
        base=base, values=row[base : last + 1], current=max(n_current - base, -1), trainer=j
    )


def _grouped(
    rows: Sequence[_Row], caps: Sequence[tuple[Members, int]], tolerance: float
) -> list[_Row]:
    """Replace the members of each cap by one row, those of the smallest cap first."""
    left = {row.trainer: row for row in rows}  # by first trainer
    owner = {row.trainer: row.trainer for row in rows}  # trainer -> first trainer of its row
    for members, most in sorted(caps, key=lambda cap: len(cap[0])):
        firsts = sorted({owner[j] for j in members})
        if not firsts:
            continue
        inner = tuple([left.pop(j) for j in firsts])
        left[firsts[0]] = _group(inner, most, tolerance)
        owner.update(dict.fromkeys(members, firsts[0]))
    return [left[j] for j in sorted(left)]


def _group(rows: tuple[_Row, ...], most: int, tolerance: float) -> _Row:
    base = sum([row.base for row in rows])
    width = min(most - base, sum([len(row.values) - 1 for row in rows]))
    if width < 0:
        raise Infeasible
    best = np.zeros(width + 1)
    for row in rows:
        values = row.values[: width + 1]
        if row.trainer >= 0:  # those of a group have it taken off
            values = values - tolerance * (np.arange(len(values)) != row.current)
        best = _joined(best, values)
    return _Row(base=base, values=best, current=-1, rows=rows)


def _joined(first: FloatArray, second: FloatArray) -> FloatArray:
    """Best sums of the two with so many nodes at most, as many values as the first has."""
    n_second = len(second)
    padded = np.concatenate([np.full(n_second - 1, -np.inf), first])
    windows = np.lib.stride_tricks.sliding_window_view(padded, n_second)
    backwards, step = second[::-1], max(1, BLOCK // n_second)
    parts = [
        (windows[start : start + step] + backwards).max(axis=1)
        for start in range(0, len(first), step)
    ]
    return np.concatenate(parts)


def _share(rows: Sequence[_Row], capacity: int, tolerance: float, sizes: IntArray) -> PoolAnswer:
    """Give the rows what they have of the capacity; ``sizes`` changes."""
    left = capacity - sum([row.base for row in rows])
    if left < 0:
        raise Infeasible
    widest = max([len(row.values) for row in rows], default=0)
    allowed = np.full((len(rows), widest + 1), -np.inf)
    for cells, row in zip(allowed, rows, strict=True):
        cells[: len(row.values)] = row.values
    current = np.array([row.current for row in rows], dtype=np.int64)
    found = solve_pool(allowed, current, left, tolerance)
    for row, more in zip(rows, found.sizes.tolist(), strict=True):
        if row.trainer >= 0:
            sizes[row.trainer] = row.base + more
        else:
            _share(row.rows, row.base + more, tolerance, sizes)
    return replace(found, sizes=sizes)
