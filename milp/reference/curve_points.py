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
    """Breakpoints from (0, 0) to ``n_nodes``; between them O_j is linear at whole sizes.

    With several batches O_j is the best of them at every size.
    """
    lines = [_points_to(curve, n_nodes) for curve in _curves(trainer, objective)]
    scale = _scale(trainer, objective)
    return tuple((n, scale * value) for n, value in _best_of(lines))


def held_rate(trainer: ProblemTrainer, objective: Objective, n_present: int) -> float:
    """O_j(C_j): what it earns now, with the batch it trains with now."""
    curves = _curves(trainer, objective)
    if objective is not Objective.UTILITY and trainer.current_batch is not None:
        curves = [
            batch.curve
            for batch in trainer.batch_curves
            if batch.global_batch == trainer.current_batch
        ] or curves
    best = max(interpolate(_points_to(curve, max(n_present, 1)), n_present) for curve in curves)
    return _scale(trainer, objective) * best


def interpolate(points: Sequence[Point], n: int) -> float:
    """The value at a size between the first and the last point."""
    for (left, low), (right, high) in itertools.pairwise(points):
        if n <= right:
            return (low * (right - n) + high * (n - left)) / (right - left)
    return points[-1][1]


def _curves(trainer: ProblemTrainer, objective: Objective) -> list[Curve]:
    if objective is Objective.UTILITY and trainer.utility is not None:
        return [trainer.utility]
    return [batch.curve for batch in trainer.batch_curves] or [trainer.curve]


def _scale(trainer: ProblemTrainer, objective: Objective) -> float:
    """1, or 1 / O(1), or weight / O(1)."""
    if objective in {Objective.THROUGHPUT, Objective.UTILITY}:
        return 1.0
    single = max(interpolate(_points_to(curve, 1), 1) for curve in _curves(trainer, objective))
    return (trainer.weight if objective is Objective.WEIGHTED else 1.0) / single


def _points_to(curve: Curve, n_nodes: int) -> tuple[Point, ...]:
    """(0, 0), the breakpoints below ``n_nodes``, and the value there."""
    known: list[Point] = [(0, 0.0), *zip(curve.sizes, curve.samples_per_s, strict=True)]
    if n_nodes == 0:
        return ((0, 0.0),)
    return (*(p for p in known if p[0] < n_nodes), (n_nodes, interpolate(known, n_nodes)))


def _best_of(lines: Sequence[tuple[Point, ...]]) -> list[Point]:
    """The highest of several piecewise-linear functions, exact at whole sizes."""
    if len(lines) == 1:
        return list(lines[0])
    knots = sorted({n for line in lines for n, _ in line})
    sizes = knots[:1]
    for left, right in itertools.pairwise(knots):
        sizes += [*_sizes_between(lines, left, right), right]
    return [(n, max(interpolate(line, n) for line in lines)) for n in sizes]


def _sizes_between(lines: Sequence[tuple[Point, ...]], left: int, right: int) -> list[int]:
    """Sizes to add where all are linear, so that their maximum is linear in between.

    It is when one of them is the highest at both ends; else halve.
    """
    if right - left < 2 or _highest(lines, left) & _highest(lines, right):
        return []
    middle = (left + right) // 2
    return [
        *_sizes_between(lines, left, middle),
        middle,
        *_sizes_between(lines, middle, right),
    ]


def _highest(lines: Sequence[tuple[Point, ...]], n: int) -> set[int]:
    values = [interpolate(line, n) for line in lines]
    top = max(values)
    return {i for i, value in enumerate(values) if value == top}
