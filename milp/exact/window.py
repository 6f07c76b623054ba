"""Dense dynamic program over one pool: sizes that fit a capacity, best key first.

Takes per trainer a short list of sizes and values, returns one size each and what the
capacity and one node more are worth. Exact, ties included; called by the solver on
what the price bound could not settle, and on everything as its own reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from milp.tables import BoolArray, FloatArray, IntArray

CHUNK_CELLS = 1 << 19  # cells of one work array (4 MB): bounds memory, fits the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The sizes one trainer chooses from."""

    sizes: IntArray  # ascending
    values: FloatArray
    rescales: IntArray  # 1 where the size differs from the current one, else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAnswer:
    """One index into each choice's sizes, and the values of two capacities."""

    picks: tuple[int, ...]
    value: float
    value_of_one_more: float  # value with capacity + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Best keys of the trainers from j on, by capacity low..high (beyond: as at high)."""

    low: int
    high: int
    values: FloatArray  # one cell in front, -inf: too little for even the smallest sizes
    rescales: IntArray

    def index(self, capacity: IntArray) -> IntArray:
        """Cells of ``values`` for these capacities."""
        cells: IntArray = np.maximum(np.minimum(capacity, self.high) - (self.low - 1), 0)
        return cells


def solve_window(choices: Sequence[Choice], capacity: int, tolerance: float) -> WindowAnswer:
    """Best picks whose sizes sum to at most ``capacity`` (the smallest sizes must fit).

    Trainers are taken last to first, so that walking back from the first one takes the
    largest of its tied sizes: FCFS. Only capacities that can occur are computed.
    """
    used_least = sum(int(choice.sizes[0]) for choice in choices)  # by the trainers before j
    used_most = sum(int(choice.sizes[-1]) for choice in choices)
    need_least, need_most = 0, 0  # by the trainers from j on
    window = _Window(
        low=0, high=0, values=np.array([-np.inf, 0.0]), rescales=np.zeros(2, dtype=np.int64)
    )
    walk: list[tuple[Choice, NDArray[np.int32], int, int]] = []
    for choice in reversed(choices):
        smallest, largest = int(choice.sizes[0]), int(choice.sizes[-1])
        used_least, used_most = used_least - smallest, used_most - largest
        need_least, need_most = need_least + smallest, need_most + largest
        high = min(capacity + 1 - used_least, need_most)
        low = min(max(capacity - used_most, need_least), high)
        window, picked = _step(choice, window, low, high, tolerance)
        walk.append((choice, picked, low, high))
    picks: list[int] = []
    left = capacity
    for choice, picked, low, high in reversed(walk):
        pick = int(picked[min(left, high) - low])
        picks.append(pick)
        left -= int(choice.sizes[pick])
    at = window.index(np.array([capacity, capacity + 1]))
    return WindowAnswer(
        picks=tuple(picks),
        value=float(window.values[at[0]]),
        value_of_one_more=float(window.values[at[1]]),
    )


def _step(
    choice: Choice, after: _Window, low: int, high: int, tolerance: float
) -> tuple[_Window, NDArray[np.int32]]:
    """Prepend a trainer: its best pick at each capacity low..high, and the keys."""
    width = high - low + 1
    values = np.full(width + 1, -np.inf)
    rescales = np.zeros(width + 1, dtype=np.int64)
    picked = np.empty(width, dtype=np.int32)
    chunk = max(1, CHUNK_CELLS // len(choice.sizes))
    for start in range(0, width, chunk):
        capacity = np.arange(low + start, min(low + start + chunk, high + 1))
        index = after.index(capacity - choice.sizes[:, None])
        candidates = after.values[index] + choice.values[:, None]
        pick = candidates.argmax(axis=0)
        columns = np.arange(len(capacity))
        is_tied = candidates >= candidates[pick, columns] - tolerance
        several = np.flatnonzero(is_tied.sum(axis=0) > 1)
        if len(several):
            pick[several] = _break_ties(choice, after, index[:, several], is_tied[:, several])
        span = slice(start, start + len(capacity))
        picked[span] = pick
        values[1:][span] = candidates[pick, columns]
        rescales[1:][span] = after.rescales[index[pick, columns]] + choice.rescales[pick]
    return _Window(low=low, high=high, values=values, rescales=rescales), picked


def _break_ties(
    choice: Choice, after: _Window, index: IntArray, is_tied: BoolArray
) -> NDArray[np.intp]:
    """Of equally good sizes: those with the fewest rescales, of these the largest."""
    rescales = after.rescales[index] + choice.rescales[:, None]
    rescales[~is_tied] = np.iinfo(np.int64).max
    is_best = rescales == rescales.min(axis=0)
    from_the_end: NDArray[np.intp] = is_best[::-1].argmax(axis=0)
    return len(choice.sizes) - 1 - from_the_end
