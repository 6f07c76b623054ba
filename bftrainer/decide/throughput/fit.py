"""Fits a concave throughput curve over all sizes to measurements, with its error. Pure.

Adding the same nodes again rarely brings more than the first time; noise sometimes suggests it, and
a solver that believes it jumps between sizes. Measured values below the line between their
neighbours by no more than their errors are raised to it; if one lies lower, the curve stays as it
is (``concave``).

Model: one sample takes y(n) = t_compute/n + t_sync(n) seconds on n nodes, where t_sync is a
sum of two non-negative parts: one that grows per step with each doubling (log2(n)/n), and one that
does not shrink with more nodes ((n-1)/n). Weighted least squares, relative to the measurements,
regularised towards a guess where sizes are missing. Residuals are added back, so that the curve
passes through the measurements within their errors. Called by ``curves``; a fit takes well under a
millisecond and is cached.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Final, NamedTuple

from milp.portable import (
    exp,
    exp2,
    geometric_mean,
    hypot,
    interpolated,
    log,
    log2,
    power,
    sum_of_products,
)
from milp.problem import Curve
from milp.tables import rate_at

Floats = list[float]
TOLERANCE: Final = 2.0  # standard errors of a value and of its neighbours
# Deviation of each part from the guess that costs as much as one standard error.
_SPREAD: Final = (1.0, 0.15, 0.02)
_ROUNDS: Final = 3  # the guess is relative to t_compute, which is being fitted
MODEL_ERROR: Final = 0.03  # relative: the assumed error of the model
LEFT_OVER: Final = 0.05  # relative: the prior deviation of residuals
# Relative error of the curve per doubling of the distance to the nearest measured size.
ERROR_BETWEEN, ERROR_BEYOND, ERROR_UNKNOWN = 0.05, 0.15, 0.5
# A user's curve is wrong where it is off by more than this (in logarithms) and by more than this
# number of standard errors; until then it is assumed to have this error where not measured.
CONTRADICTS, CONTRADICTS_ERRORS, ERROR_OF_USERS = 0.05, 3.0, 0.05


class Guess(NamedTuple):
    """The assumed scaling of a trainer before it was measured."""

    exponent: float  # throughput is proportional to size ** exponent
    parts: tuple[float, float, float]  # the same in the model, within 3% up to 64 nodes


# Each doubling of the size brings 1.75 times the throughput: most networks of Table 2 of
# the BFTrainer paper scale better than that up to 64 nodes. For decisions that do not explore.
CAUTIOUS: Final = Guess(0.807, (1.0, 0.136, 0.0066))
# 1.92 times, typical of the networks of Table 2. A trainer assumed to be worse than the measured
# ones would never be measured, so for exploring the guess must not be too low.
USUAL: Final = Guess(0.941, (1.0, 0.04, 0.0007))


def concave(
    sizes: Sequence[int], curve: Floats, measured: Sequence[int], errors: Sequence[float]
) -> Floats:
    """Return the curve, concave from (0, 0) if the values at ``measured`` allow it.

    ``errors`` are relative, of the measured values. The values in between are changed.
    """
    xs: list[int] = []
    values: Floats = []
    for i in measured:
        xs.append(sizes[i])
        values.append(curve[i])
    last, anchors = measured[-1], _raised(xs, values, errors)
    if anchors is None:
        return curve
    lines = _ceiling(xs, anchors, _end_slope(sizes, curve, last))
    bent: Floats = []
    for size, value in zip(sizes, curve, strict=True):
        lowest = value
        for x, y, slope in lines:
            lowest = min(lowest, y + slope * (size - x))
        bent.append(lowest)
    for i, value in zip(measured, anchors, strict=True):
        bent[i] = value
    bent = _hull(sizes, bent)
    # If the curve already falls, the fall is not extrapolated.
    for i in range(last + 1, len(bent)):
        bent[i] = max(bent[i], anchors[-1])
    return bent


def _raised(xs: Sequence[int], values: Floats, errors: Sequence[float]) -> Floats | None:
    """Measured values raised to their hull; None if one is too far below it."""
    hull = _hull(xs, values)
    errors_after, errors_before = [*errors[1:], 0.0], [0.0, *errors[:-1]]
    for raised, value, error, after, before in zip(
        hull, values, errors, errors_after, errors_before, strict=True
    ):
        noise = TOLERANCE * hypot(error, max(after, before)) * value + 1e-9 * value
        if not raised - value <= noise:
            return None
    return hull


def _ceiling(
    xs: Sequence[int], anchors: Floats, end_slope: float
) -> list[tuple[int, float, float]]:
    """Return lines through the anchors, of which the curve is nowhere above the lowest.

    Each has a slope that a concave curve through all of them can have there.
    """
    corners = [(0, 0.0), *zip(xs, anchors, strict=True)]
    chords = [(y - y0) / (x - x0) for (x0, y0), (x, y) in pairwise(corners)]
    slopes = [0.5 * (before + after) for before, after in pairwise(chords)]
    slopes.append(min(chords[-1], end_slope))
    return list(zip(xs, anchors, slopes, strict=True))


def _end_slope(sizes: Sequence[int], curve: Floats, last: int) -> float:
    """Slope of the curve around the largest measured size, beyond which there is no chord."""
    around = [(0, 0.0), *zip(sizes, curve, strict=True)]
    (x0, y0), (x, y) = around[last], around[min(last + 2, len(sizes))]
    return max(0.0, (y - y0) / (x - x0))


def _hull(sizes: Sequence[int], values: Floats) -> Floats:
    """The least concave function from (0, 0) that is nowhere below the values."""
    corners: list[tuple[int, float]] = [(0, 0.0)]
    for x, y in zip(sizes, values, strict=True):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                break
            corners.pop()
        corners.append((x, y))
    xs, ys = zip(*corners, strict=True)
    return [interpolated(size, xs, ys) for size in sizes]


class MeasuredSize(NamedTuple):
    """The measured throughput at one size."""

    size: int
    samples_per_s: float  # > 0
    error: float  # relative standard error


class Fitted(NamedTuple):
    """A curve and how well it is known."""

    curve: Curve
    points: tuple[MeasuredSize, ...]  # by size
    unmeasured: float = ERROR_UNKNOWN  # relative error where nothing is measured

    def error_at(self, size: int) -> float:
        """Relative error of the curve at a size."""
        return error_at(self.points, size, self.unmeasured)


@lru_cache(maxsize=1024)
def fit(points: tuple[MeasuredSize, ...], n_max: int, guess: Guess = CAUTIOUS) -> Fitted:
    """Fit a curve up to ``n_max`` to the points, which are sorted by size.

    Bounds: beyond the largest measured size the curve does not fall and rises at most in
    proportion to the nodes; likewise below the smallest.
    """
    if not points:
        unmeasured_sizes = sorted({*_powers_of_two(n_max), n_max})
        rates = [power(n, guess.exponent) for n in unmeasured_sizes]
        return Fitted(Curve(sizes=tuple(unmeasured_sizes), samples_per_s=tuple(rates)), ())
    measured_sizes, values, errors = zip(*points, strict=True)
    sizes = sorted({*_powers_of_two(n_max), n_max, *measured_sizes})
    bases = list(map(_basis, measured_sizes))
    parts = fitted_parts(bases, values, errors, guess.parts, _SPREAD)
    model = [sum_of_products(_basis(size), parts) for size in sizes]  # seconds per sample
    positions = list(map(sizes.index, measured_sizes))
    left_over: Floats = []  # log(measured / model), as far as it is more than noise
    for i, value, error in zip(positions, values, errors, strict=True):
        trust = LEFT_OVER * LEFT_OVER / (LEFT_OVER * LEFT_OVER + error * error)
        left_over.append(log(value * model[i]) * trust)
    at = list(map(log2, measured_sizes))
    curve: Floats = []
    for size, seconds in zip(sizes, model, strict=True):
        factor = exp(_spread(at, left_over, log2(size)))
        curve.append(factor / seconds)
    curve = concave(sizes, _bounded(sizes, curve, positions), positions, errors)
    return Fitted(Curve(sizes=tuple(sizes), samples_per_s=tuple(curve)), points)


@lru_cache(maxsize=1024)
def correct(
    users_curve: Curve, points: tuple[MeasuredSize, ...], n_max: int, guess: Guess = CAUTIOUS
) -> Fitted:
    """Return a user's curve, corrected where measurements contradict it.

    They do if one is off by more than 5% and by more than three standard errors. If all are off
    by the same factor, the level was wrong (another machine, another unit) and the shape stays:
    the ratio of measured to claimed is interpolated over log2(size), constant beyond. Otherwise
    the curve is fitted as if nothing had been claimed.
    """
    sizes = set(users_curve.sizes)
    at: Floats = []
    off: Floats = []
    errors: Floats = []
    contradicts = False
    for size, samples_per_s, error in points:
        claimed = rate_at(users_curve, size)
        if claimed > 0.0:
            log_ratio = log(samples_per_s / claimed)
            contradicts = contradicts or _differs(log_ratio, error)
            sizes.add(size)
            at.append(log2(size))
            off.append(log_ratio)
            errors.append(error)
    if not contradicts:
        return Fitted(users_curve, points, ERROR_OF_USERS)
    for (ratio, error), (other_ratio, other_error) in combinations(
        zip(off, errors, strict=True), 2
    ):
        if _differs(ratio - other_ratio, hypot(error, other_error)):
            return fit(points, n_max, guess)
    rates: Floats = []
    for size in sorted(sizes):
        factor = exp(interpolated(log2(size), at, off))
        rates.append(rate_at(users_curve, size) * factor)
    curve = Curve(sizes=tuple(sorted(sizes)), samples_per_s=tuple(rates))
    return Fitted(curve, points, ERROR_UNKNOWN)


def _differs(log_ratio: float, error: float) -> bool:
    return abs(log_ratio) > max(CONTRADICTS, CONTRADICTS_ERRORS * error)


def error_at(points: Sequence[MeasuredSize], size: int, unmeasured: float = ERROR_UNKNOWN) -> float:
    """Relative error of a curve through ``points`` at a size, measured or not."""
    if not points:
        return unmeasured
    i = bisect_left(points, size, key=lambda p: p.size)
    if i < len(points) and points[i].size == size:
        return points[i].error
    neighbours = points[max(0, i - 1) : i + 1]
    per_doubling = ERROR_BEYOND
    if len(neighbours) == 2:
        per_doubling = ERROR_BETWEEN
    distance, error = math.inf, 0.0
    for point in neighbours:
        distance, error = min((distance, error), (abs(log2(size / point.size)), point.error))
    return min(unmeasured, hypot(error, per_doubling * distance))


def _basis(size: int) -> tuple[float, float, float]:
    """Seconds per sample of one unit of each part at a size."""
    return 1.0 / size, log2(size) / size, (size - 1.0) / size


def fitted_parts(
    basis: Sequence[Sequence[float]],
    values: Sequence[float],
    errors: Sequence[float],
    guess: Sequence[float],
    spread: Sequence[float],
) -> Floats:
    """Return non-negative parts by weighted least squares, regularised towards a guess.

    Args:
        basis: seconds per sample of one unit of each part, [measurement][part].
        values: measured samples per second.
        errors: their relative standard errors.
        guess: parts, up to a common factor.
        spread: deviation of each part from the guess that costs as much as one standard error,
            in units of the first part, which is free.
    """
    weights: Floats = []
    rows: list[Floats] = []  # of (model / measured - 1) / error
    off: Floats = []
    for row, value, error in zip(basis, values, errors, strict=True):
        weight = 1.0 / hypot(error, MODEL_ERROR)
        weights.append(weight)
        rows.append([part_s * value * weight for part_s in row])
        off.append(value * sum_of_products(row, guess))
    columns = list(zip(*rows, strict=True))
    normal = [_products(column, columns) for column in columns]
    right = [sum_of_products(column, weights) for column in columns]
    scale = 1.0 / geometric_mean(off)
    parts = [part * scale for part in guess]
    for _ in range(_ROUNDS):
        pulled, towards = [row.copy() for row in normal], right.copy()
        for i, (deviation, part) in enumerate(zip(spread, guess, strict=True)):
            force = 1.0 / (deviation * scale * deviation * scale)
            if i == 0:
                force *= 1e-6  # the speed of one node is not known beforehand
            pulled[i][i] += force
            towards[i] += force * part * scale
        parts = _least_squares(pulled, towards)
        scale = max(parts[0], 1e-3 * scale)
    parts[0] = max(parts[0], 1e-3 * scale)  # one node takes some time, too
    return parts


def _products(vector: Sequence[float], columns: Iterable[Sequence[float]]) -> Floats:
    return [sum_of_products(vector, column) for column in columns]


def _in_units(row: Floats, unit: Floats, own_unit: float) -> Floats:
    return [value / (own_unit * of_value) for value, of_value in zip(row, unit, strict=True)]


def _least_squares(normal: list[Floats], right: Floats) -> Floats:
    """Minimise x·normal·x/2 - right·x over x >= 0 (``normal`` is positive definite).

    The active-set method of Lawson and Hanson, for a handful of unknowns.
    """
    every = range(len(right))
    unit = [math.sqrt(normal[i][i]) for i in every]  # the parts differ by orders of magnitude
    normal = [_in_units(normal[i], unit, unit[i]) for i in every]
    right = [value / part for value, part in zip(right, unit, strict=True)]
    x, free = [0.0] * len(right), set[int]()
    least_slope = 1e-9 * max(map(abs, right))
    for _ in range(4 * len(right)):
        slopes = {i: right[i] - sum_of_products(normal[i], x) for i in every if i not in free}
        enters = max(slopes, key=slopes.__getitem__, default=None)
        if enters is None or slopes[enters] <= least_slope:
            break
        free.add(enters)
        while True:
            solution = _solved(normal, right, sorted(free))
            falls = [i for i in free if solution[i] <= 0.0]
            if not falls:
                break
            step = min([x[i] / (x[i] - solution[i]) for i in falls])
            for i in every:
                x[i] += step * (solution[i] - x[i])
                if x[i] <= 1e-15:
                    free.discard(i)
                if i not in free:
                    x[i] = 0.0
        x = solution
    return [value / part for value, part in zip(x, unit, strict=True)]


def _solved(normal: list[Floats], right: Floats, free: Sequence[int]) -> Floats:
    """Solve for the free unknowns, the others being 0, by Cholesky's factors L·D·L'."""
    x = [0.0] * len(right)
    lower: list[Floats] = []  # L, without its diagonal of ones
    pivots: Floats = []  # D
    for at, i in enumerate(free):
        scaled: Floats = []  # this row of L·D
        for before, j in zip(lower, free[:at], strict=True):
            scaled.append(normal[i][j] - sum_of_products(scaled, before))
        lower.append([value / pivot for value, pivot in zip(scaled, pivots, strict=True)])
        pivots.append(normal[i][i] - sum_of_products(scaled, lower[at]))
        x[i] = right[i] - sum_of_products(lower[at], [x[j] for j in free[:at]])
    for at in range(len(free) - 1, -1, -1):
        column = [row[at] for row in lower[at + 1 :]]
        coupled = sum_of_products(column, [x[j] for j in free[at + 1 :]])
        x[free[at]] = x[free[at]] / pivots[at] - coupled
    return x


def _spread(positions: Floats, left_over: Floats, at: float) -> float:
    """Interpolate the residuals linearly; halve them per doubling beyond."""
    beyond = max(0.0, positions[0] - at, at - positions[-1])
    return interpolated(at, positions, left_over) * exp2(-beyond)


def _bounded(sizes: Sequence[int], curve: Floats, measured: Sequence[int]) -> Floats:
    """Clip interpolated and extrapolated values to what sizes can do."""
    first, last = measured[0], measured[-1]
    bounded = curve.copy()
    for i, size in enumerate(sizes):
        if i < first:
            low, high = curve[first] * size / sizes[first], curve[first]
        elif i > last:
            low, high = curve[last], curve[last] * size / sizes[last]
        elif i in measured:
            continue
        else:
            k = bisect_left(measured, i)
            before, after = measured[k - 1], measured[k]
            low = min(curve[before], curve[after])
            high = max(curve[after], curve[before] * size / sizes[before])
        bounded[i] = min(max(curve[i], low), high)
    return bounded


def _powers_of_two(limit: int) -> list[int]:
    return [1 << k for k in range(limit.bit_length())]
