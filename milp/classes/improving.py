"""A better allocation over several node classes by moving one trainer at a time.

Takes an Instance and a plan (sizes and classes), returns one worth no less; called when
the search over vectors would take too long. Each class gets its exact best sizes for
the trainers assigned to it; a trainer goes to another class, or two change places,
while that gains. Trainers that mix classes stay as they are.
"""

from __future__ import annotations

import numpy as np

from milp.classes.menus import Instance
from milp.exact.dual import PoolAnswer, solve_pool
from milp.tables import BoolArray, FloatArray, IntArray

MAX_MOVES = 60  # classes solved anew after a move; most plans are at rest after 5 to 20


class Classing:
    """Which trainer is in which class, and the best sizes for that."""

    def __init__(self, instance: Instance, classes: IntArray, left: IntArray) -> None:
        self._instance = instance
        self._left = left.tolist()  # nodes by class that mixing trainers leave
        self._accepts: BoolArray = np.any(np.isfinite(instance.allowed[:, :, 1:]), axis=2)
        self.classes = classes.copy()
        self._known: dict[tuple[int, bytes], PoolAnswer] = {}

    def improve(self) -> tuple[IntArray, IntArray]:
        """Classes and sizes when no move gains any more."""
        for _ in range(MAX_MOVES):
            if not self._move() and not self._exchange():
                break
        sizes = np.zeros_like(self.classes)
        for k in range(len(self._left)):
            members = self._members(k)
            sizes[members] = self._solve(k, members).sizes
        return np.where(sizes > 0, self.classes, 0), sizes

    def _members(self, k: int) -> IntArray:
        return np.flatnonzero((self.classes == k) & self._accepts[k])

    def _solve(self, k: int, members: IntArray) -> PoolAnswer:
        """Exact sizes of the trainers of one class."""
        key = (k, members.tobytes())
        if key not in self._known:
            instance = self._instance
            allowed = instance.allowed[k][members]
            allowed[:, 0] = instance.totals[members, 0]
            self._known[key] = solve_pool(
                allowed, instance.current[members], self._left[k], instance.tolerance
            )
        return self._known[key]

    def _worth(self, k: int, without: int | None = None, plus: int | None = None) -> float:
        """Value of a class after a change, beside what those without a node are worth."""
        members = self._members(k)
        if without is not None:
            members = members[members != without]
        if plus is not None:
            members = np.sort(np.append(members, plus))
        at_nothing = float(self._instance.totals[members, 0].sum())
        return self._solve(k, members).value - at_nothing

    def _move(self) -> bool:
        """Make the best move of one trainer; False: none gains."""
        best, best_move = 8 * self._instance.tolerance, None
        worth = [self._worth(k) for k in range(len(self._left))]
        for j, old in enumerate(self.classes.tolist()):
            others = [k for k in np.flatnonzero(self._accepts[:, j]).tolist() if k != old]
            if not others:
                continue
            loss = worth[old] - self._worth(old, without=j) if self._accepts[old, j] else 0.0
            for k in others:
                gain = self._worth(k, plus=j) - worth[k] - loss
                if gain > best:
                    best, best_move = gain, (j, k)
        if best_move is not None:
            self.classes[best_move[0]] = best_move[1]
        return best_move is not None

    def _exchange(self) -> bool:
        """Make the first exchange of two trainers that gains; False: none does."""
        n_classes = len(self._left)
        worth = [self._worth(k) for k in range(n_classes)]
        for j in range(len(self.classes)):
            old = int(self.classes[j])
            for i in range(j):
                new = int(self.classes[i])
                if new == old or not (self._accepts[new, j] and self._accepts[old, i]):
                    continue
                after = self._worth(old, without=j, plus=i) + self._worth(new, without=i, plus=j)
                if after > worth[old] + worth[new] + 8 * self._instance.tolerance:
                    self.classes[j], self.classes[i] = new, old
                    return True
        return False


def balance(instance: Instance, prices: FloatArray, left: IntArray) -> IntArray:
    """Classes to begin with: largest first to the class with most nodes left.

    Of the classes worth most to it at these prices.
    """
    columns = np.arange(instance.allowed.shape[2])
    reduced = (instance.allowed - prices[:, None, None] * columns)[:, :, 1:]
    wanted = reduced.argmax(axis=2) + 1  # [k, j]
    worth = reduced.max(axis=2)
    room = left.copy()
    classes = np.zeros(len(instance.current), dtype=np.int64)
    near = float(prices.max(initial=0.0))
    for j in np.argsort(-wanted.max(axis=0), kind="stable").tolist():
        suits = np.isfinite(worth[:, j]) & (worth[:, j] >= worth[:, j].max() - near)
        if suits.any():
            k = int(np.where(suits, room, np.iinfo(np.int64).min).argmax())
            classes[j] = k
            room[k] -= wanted[k, j]
    return classes
