"""Turns rows and their map of grades into an Allocation: names, objective, marginal values.

Takes what the graded search found; called by ``solve_graded``. Nodes of a grade are
worth the same; which of them a trainer gets follows what it has: nodes nobody holds,
with a pilot, on its switches, that stay longest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from milp.graded.earning import NOBODY, Grades
from milp.graded.search import Found
from milp.problem import Allocation, Marginal, Problem, ProblemNode, ProblemTrainer
from milp.tables import BoolArray, best_batch, held_rate, rate_at, rate_curve, rate_scale

NO_MARGINAL = Marginal(gain_of_one_more=None, loss_of_one_fewer=None)


def make_graded_allocation(problem: Problem, grades: Grades, found: Found) -> Allocation:
    """Name the nodes and put the numbers beside them."""
    marginals = {trainer.trainer_id: NO_MARGINAL for trainer in problem.trainers}
    assignment = _name_nodes(grades, found)
    values: list[float] = []
    for j, trainer in enumerate(grades.trainers):
        share = _Share(problem, grades, found, j, _idle_nodes(grades, assignment, j))
        values.append(share.value)
        marginals[trainer.trainer_id] = Marginal(
            gain_of_one_more=share.gain_of_one_more(), loss_of_one_fewer=share.loss_of_one_fewer()
        )
    pool = {node.name for node in problem.nodes}
    for trainer in problem.trainers[problem.p_jmax :]:
        n_present = len(pool.intersection(trainer.current))
        values.append(-_rescale_cost(problem, trainer, n_present, 0))
    sizes = found.rows.size.tolist()
    return Allocation(
        assignment=assignment,
        objective=math.fsum(values),
        node_price=float(found.prices.max(initial=0.0)),
        marginals=marginals,
        solver="graded",
        gap=found.bound - found.map.value,
        batches={
            trainer.trainer_id: best_batch(trainer, size)
            for trainer, size in zip(grades.trainers, sizes, strict=True)
            if trainer.batch_curves and size
        },
    )


def _rescale_cost(problem: Problem, trainer: ProblemTrainer, present: int, size: int) -> float:
    if size == present or not present:
        return 0.0
    pause_s = trainer.rescale_up_s if size > present else trainer.rescale_down_s
    return held_rate(trainer, present, problem.objective) * pause_s


def _idle_nodes(grades: Grades, assignment: dict[str, str], j: int) -> _Idle:
    left = [
        [holder for node, holder in pairs if node.name not in assignment] for pairs in grades.nodes
    ]
    return _Idle(
        of_any=np.array([bool(holders) for holders in left], dtype=np.bool_),
        of_own=np.array([j in holders for holders in left], dtype=np.bool_),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Idle:
    """Grades [g] with nodes that nobody gets."""

    of_any: BoolArray
    of_own: BoolArray  # among them nodes that the trainer held


class _Share:
    """What one trainer has, and what it would be worth with another node."""

    def __init__(self, problem: Problem, grades: Grades, found: Found, j: int, idle: _Idle) -> None:
        self._problem, self._trainer = problem, grades.trainers[j]
        self._present, self._size = int(grades.present[j]), int(found.rows.size[j])
        self._own, self._used = grades.own[j], found.map.used[j]
        fixed = found.rows.fixed[j]
        self._keeps_all = int(fixed.sum()) == self._present
        self._kept_s = grades.kept_s
        self._chosen_s = grades.joined_s[j] if self._keeps_all else grades.kept_s
        self._seconds = float(fixed @ grades.kept_s + self._used @ self._chosen_s)
        self._idle = idle
        self._menu: BoolArray = grades.accepts[j][grades.class_of]
        if self._size and not self._trainer.mixes_classes:
            self._menu = grades.class_of == found.rows.menu[j]
        self.value = self._at(self._size, self._seconds)

    def _at(self, size: int, seconds: float) -> float:
        """Its part of the objective when its nodes train so many seconds together."""
        cost = _rescale_cost(self._problem, self._trainer, self._present, size)
        if not size:
            return -cost
        objective = self._problem.objective
        rate = rate_at(rate_curve(self._trainer, objective), size)
        return rate * rate_scale(self._trainer, objective) / size * seconds - cost

    def gain_of_one_more(self) -> float | None:
        """Of the best idle node; where none is, of one like the best there are.

        A trainer that shrinks can only keep one more of its own.
        """
        size = self._size + 1
        if not self._trainer.n_min <= size <= self._trainer.n_max:
            return None
        idle, any_of_them = self._idle.of_any, self._menu
        if not self._keeps_all:
            idle, any_of_them = self._idle.of_own, self._menu & (self._own > self._used)
        choice = self._menu & idle
        if not choice.any():
            choice = any_of_them
        if not choice.any():
            return None
        return self._at(size, self._seconds + float(self._chosen_s[choice].max())) - self.value

    def loss_of_one_fewer(self) -> float | None:
        """Of the node that earns least; below n_min of all of them."""
        if not self._size:
            return None
        if self._size == self._trainer.n_min:
            return self.value - self._at(0, 0.0)
        least_s = (
            self._kept_s[self._own > 0] if not self._used.any() else self._chosen_s[self._used > 0]
        )
        return self.value - self._at(self._size - 1, self._seconds - float(least_s.min()))


def _name_nodes(grades: Grades, found: Found) -> dict[str, str]:
    """Which nodes the map means: first what trainers keep, then what they get."""
    rows, used = found.rows, found.map.used
    assignment: dict[str, str] = {}
    switches: list[Counter[str]] = [Counter() for _ in grades.trainers]
    keeps_all = rows.fixed.sum(axis=1) == grades.present

    def hand_out(j: int, nodes: Iterable[ProblemNode]) -> None:
        for node in nodes:
            assignment[node.name] = grades.trainers[j].trainer_id
            switches[j][node.switch] += 1

    kept = np.where(keeps_all[:, None], rows.fixed, used)
    for j, g in zip(*np.nonzero(kept), strict=True):
        own = [node for node, holder in grades.nodes[g] if holder == j]
        hand_out(j, sorted(own, key=_giving_up_last(grades.trainers[j]))[: kept[j, g]])
    for j, g in zip(*np.nonzero(np.where(keeps_all[:, None], used, 0)), strict=True):
        on_switch = switches[j]
        free = [pair for pair in grades.nodes[g] if pair[0].name not in assignment]
        free.sort(
            key=lambda pair: (
                pair[1] != NOBODY,
                not pair[0].has_pilot,
                -on_switch[pair[0].switch],
                -_remaining_s(pair[0]),
                pair[0].name,
            )
        )
        hand_out(j, [node for node, _ in free[: used[j, g]]])
    return assignment


def _remaining_s(node: ProblemNode) -> float:
    return math.inf if node.expected_remaining_s is None else node.expected_remaining_s


def _giving_up_last(trainer: ProblemTrainer) -> Callable[[ProblemNode], tuple[object, ...]]:
    """Sort key of a trainer's own nodes: those it should rather keep come first."""
    settled = set(trainer.settled)

    def key(node: ProblemNode) -> tuple[object, ...]:
        return (
            node.name not in settled,
            -_remaining_s(node),
            not node.has_pilot,
            node.switch,
            node.name,
        )

    return key
