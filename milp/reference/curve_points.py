"""O_j as the breakpoints of eq. 11, in the unit of the objective, for the node-level model.

A trainer comes in, its breakpoints and the rate it holds now go out. Written apart from
``milp.tables``, which the exact solver reads, so that the two can be held together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

from milp.problem import Curve, Objective, ProblemTrainer

Point: TypeAlias = tuple[int, float]  # size, value


def objective_points(
    trainer: ProblemTrainer, objective: Objective, n_nodes: int
) -> tuple[Point, ...]:
    """Breakpoints from (0, 0) to ``n_nodes``; between them O_j is linear."""
    scale = _scale(trainer, objective)
    points = _points_to(_curve(trainer, objective), n_nodes)
    return tuple((n, scale * value) for n, value in points)


def held_rate(trainer: ProblemTrainer, objective: Objective, n_present: int) -> float:
    """O_j(C_j): what it earns now."""
    points = _points_to(_curve(trainer, objective), max(n_present, 1))
    return _scale(trainer, objective) * interpolate(points, n_present)


def interpolate(points: Sequence[Point], n: int) -> float:
    """The value at a size between the first and the last point."""
    for (left, low), (right, high) in itertools.pairwise(points):
        if n <= right:
            return (low * (right - n) + high * (n - left)) / (right - left)
    return points[-1][1]


def _curve(trainer: ProblemTrainer, objective: Objective) -> Curve:
    if objective is Objective.UTILITY and trainer.utility is not None:
        return trainer.utility
    return trainer.curve


def _scale(trainer: ProblemTrainer, objective: Objective) -> float:
    """1, or 1 / O(1), or weight / O(1)."""
    if objective in {Objective.THROUGHPUT, Objective.UTILITY}:
        return 1.0
    single = interpolate(_points_to(_curve(trainer, objective), 1), 1)
    return (trainer.weight if objective is Objective.WEIGHTED else 1.0) / single


def _points_to(curve: Curve, n_nodes: int) -> tuple[Point, ...]:
    """(0, 0), the breakpoints below ``n_nodes``, and the value there."""
    known: list[Point] = [(0, 0.0), *zip(curve.sizes, curve.samples_per_s, strict=True)]
    if n_nodes == 0:
        return ((0, 0.0),)
    return (*(p for p in known if p[0] < n_nodes), (n_nodes, interpolate(known, n_nodes)))
