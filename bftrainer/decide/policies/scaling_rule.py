"""The scaling rule of Or et al.: the next size of a trainer, from the throughput of known sizes.

Source: Or, Zhang and Freedman, "Resource Elasticity in Distributed Deep Learning" (MLSys 2020),
section 4. A job is measured at its size, then grows by ``step`` nodes while a condition holds
between the last two sizes; where it fails first, the job goes back to the size before, or down
until the condition holds. The paper keeps how far it has come in variables; here the known sizes
alone tell it, so a job that is settled moves again when a measurement or a bound changes.

Beyond the paper a condition may be undecided: a job measures on until the scaling efficiency is
some standard errors away from the threshold. Used by the policies ``throughput-scaling`` and
``utility`` and by ``lab.papers.elasticity``. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from bftrainer.decide.throughput.fit import MeasuredSize
from bftrainer.model.decision import Term
from milp.portable import hypot, interpolated

Points = tuple[tuple[float, float], ...]


class Condition(Protocol):
    """The condition under which the larger of two measured sizes is worth its nodes."""

    def holds(self, low: MeasuredSize, high: MeasuredSize) -> bool | None:
        """Return whether it is; None: measure on."""

    def worth(self, low: MeasuredSize, high: MeasuredSize) -> float:
        """Return by how much, per node: the greater, the sooner its request is met."""

    def terms(self, points: Sequence[MeasuredSize]) -> tuple[Term, ...]:
        """Return what it compares of neighbouring sizes, in ascending order."""


def efficiency(low: MeasuredSize, high: MeasuredSize) -> float:
    """Return s = ((R_high - R_low) / d) / (R_low / low) for d = high - low nodes (4.2.1)."""
    per_node = low.samples_per_s / low.size
    return (high.samples_per_s - low.samples_per_s) / (high.size - low.size) / per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """s > S; undecided while s is within some standard errors of S."""

    threshold: float = 0.1
    standard_errors: float = 2.0  # 0: decided at once, as in the paper

    def holds(self, low: MeasuredSize, high: MeasuredSize) -> bool | None:
        """Return whether s > S."""
        ratio = high.samples_per_s / low.samples_per_s
        error = low.size / (high.size - low.size) * ratio * hypot(low.error, high.error)
        beyond = efficiency(low, high) - self.threshold
        if abs(beyond) < self.standard_errors * error:
            return None
        return beyond > 0.0

    def worth(self, low: MeasuredSize, high: MeasuredSize) -> float:
        """Return s."""
        return efficiency(low, high)

    def terms(self, points: Sequence[MeasuredSize]) -> tuple[Term, ...]:
        """Return s between each two, and S."""
        terms: list[Term] = []
        for low, high in pairwise(points):
            terms.append(Term(f"s from {low.size} to {high.size}", efficiency(low, high)))
        return *terms, Term("threshold S", self.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payoff:
    """U(T(high)) - U(T(low)) > C(high) - C(low), by what is left of the job (4.2.2).

    ``utility`` lists (seconds, dollars), linear between, constant outside: a gap of a step
    function is a line between two of them (Fig. 5c).
    """

    utility: Points
    price: float  # dollars per node and second
    past_s: float
    left_samples: float

    def of(self, point: MeasuredSize, *, pause_s: float = 0.0) -> float:
        """Return U - C in dollars, less the costs so far, if it stays at this size."""
        left_s = pause_s + self.left_samples / point.samples_per_s
        times_s, dollars = zip(*self.utility, strict=True)
        value = interpolated(self.past_s + left_s, times_s, dollars)
        return value - left_s * point.size * self.price

    def holds(self, low: MeasuredSize, high: MeasuredSize) -> bool:
        """Return whether more is gained than spent."""
        return self.of(high) > self.of(low)

    def worth(self, low: MeasuredSize, high: MeasuredSize) -> float:
        """Return what is gained less what is spent, per node."""
        return (self.of(high) - self.of(low)) / (high.size - low.size)

    def terms(self, points: Sequence[MeasuredSize]) -> tuple[Term, ...]:
        """Return U - C of each."""
        return tuple([Term(f"U - C at {point.size}", self.of(point), "$") for point in points])


def next_size(
    size: int,
    points: Mapping[int, MeasuredSize],
    condition: Condition,
    *,
    step: int,
    least: int,
    most: int,
) -> int:
    """Return the size to go to; ``size`` itself: measure on, or settled.

    Args:
        size: at present, in least..most.
        points: the measured sizes; only those within ``step`` of ``size`` are compared with it.
        condition: of growing.
        step: K, nodes per move.
        least: smallest size.
        most: largest size that can be had now.
    """
    if size not in points:
        return size
    points = _from(least, points)  # bounds may have changed
    above = _above(size, points, step, most)
    below = _below(size, points, step)
    if above is not None:
        is_better = _is_better(above, size, points, condition, step)
        if is_better is not False:
            return above if is_better else size
    further = size
    if above is None:
        further = min(size + step, most)
    if below is None:
        # The first move is out; where that has failed or is impossible, in.
        return further if further > size else max(size - step, least)
    earned = condition.holds(points[below], points[size])
    if earned is not False:
        return further if earned else size
    if below <= least or _below(below, points, step) is not None:
        return below
    return max(below - step, least)


def neighbours(
    size: int, points: Mapping[int, MeasuredSize], *, step: int, least: int, most: int
) -> list[MeasuredSize]:
    """Return the points of a size and of those that ``next_size`` compares it with."""
    points = _from(least, points)
    sizes = (_below(size, points, step), size, _above(size, points, step, most))
    return [points[n] for n in sizes if n is not None and n in points]


def _from(least: int, points: Mapping[int, MeasuredSize]) -> dict[int, MeasuredSize]:
    return {n: point for n, point in points.items() if n >= least}


def _above(size: int, points: Mapping[int, MeasuredSize], step: int, most: int) -> int | None:
    return max([n for n in points if size < n <= min(size + step, most)], default=None)


def _below(size: int, points: Mapping[int, MeasuredSize], step: int) -> int | None:
    return min([n for n in points if size - step <= n < size], default=None)


def _is_better(
    above: int, size: int, points: Mapping[int, MeasuredSize], condition: Condition, step: int
) -> bool | None:
    """Return whether to grow to a known size; not if that would be left again at once."""
    below = _below(above, points, step)
    if below not in (None, size) and condition.holds(points[below], points[above]) is False:
        return False
    return condition.holds(points[size], points[above])
