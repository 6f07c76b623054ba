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

import itertools
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
    leaves: list[_Row] = []
    for j, (values, n_current, is_bound) in enumerate(zip(allowed, current, must_run, strict=True)):
        leaves.append(_leaf(j, values, int(n_current), is_bound=bool(is_bound)))
    rows = _grouped(leaves, caps, tolerance)
    sizes = np.zeros(len(leaves), dtype=np.int64)
    answer = _share(rows, capacity, tolerance, sizes)
    gain_of_one_more = max(answer.value_of_one_more - answer.value, 0.0)
    value = math.fsum(allowed[np.arange(len(leaves)), sizes].tolist())
    return PoolAnswer(sizes=sizes, value=value, value_of_one_more=value + gain_of_one_more)


def is_nested(caps: Sequence[tuple[Members, int]]) -> bool:
    """Return whether of any two caps with a common trainer one lies within the other."""
    groups = [frozenset(members) for members, _ in caps]
    for first, second in itertools.combinations(groups, 2):
        if not (first.isdisjoint(second) or first <= second or second <= first):
            return False
    return True


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
    outer_rows = {row.trainer: row for row in rows}  # by first trainer
    first_of = {row.trainer: row.trainer for row in rows}  # trainer -> first trainer of its row
    for members, limit in sorted(caps, key=_n_members):
        firsts = sorted({first_of[j] for j in members})
        if not firsts:
            continue
        inner_rows = tuple(map(outer_rows.pop, firsts))
        outer_rows[firsts[0]] = _group(inner_rows, limit, tolerance)
        first_of.update(dict.fromkeys(members, firsts[0]))
    return [outer_rows[j] for j in sorted(outer_rows)]


def _n_members(cap: tuple[Members, int]) -> int:
    members, _ = cap
    return len(members)


def _group(rows: tuple[_Row, ...], limit: int, tolerance: float) -> _Row:
    base = n_beyond = 0
    for row in rows:
        base += row.base
        n_beyond += len(row.values) - 1
    width = min(limit - base, n_beyond)
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
    nodes_left = capacity - sum([row.base for row in rows])
    if nodes_left < 0:
        raise Infeasible
    widest = max([len(row.values) for row in rows], default=0)
    values = np.full((len(rows), widest + 1), -np.inf)
    current = np.zeros(len(rows), dtype=np.int64)
    for i, row in enumerate(rows):
        values[i, : len(row.values)] = row.values
        current[i] = row.current
    answer = solve_pool(values, current, nodes_left, tolerance)
    for row, beyond_base in zip(rows, answer.sizes.tolist(), strict=True):
        size = row.base + beyond_base
        if row.trainer >= 0:
            sizes[row.trainer] = size
        else:
            _share(row.rows, size, tolerance, sizes)
    return replace(answer, sizes=sizes)
