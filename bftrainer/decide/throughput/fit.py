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


def concave(
    sizes: Sequence[int], curve: Floats, measured: Sequence[int], errors: Sequence[float]
) -> Floats:
    """Return the curve, concave from (0, 0) if the values at ``measured`` allow it.

    ``errors`` are relative, of the measured values. The values in between are changed.
    """
    xs, last = [sizes[i] for i in measured], measured[-1]
    anchors = _raised(xs, [curve[i] for i in measured], errors)
    if anchors is None:
        return curve
    lines = _ceiling(xs, anchors, _end_slope(sizes, curve, last))
    bent: Floats = []
    for size, value in zip(sizes, curve, strict=True):
        bounds = [y + slope * (size - x) for x, y, slope in lines]
        bent.append(min(value, *bounds))
    for i, value in zip(measured, anchors, strict=True):
        bent[i] = value
    bent = _hull(sizes, bent)
    # If the curve already falls, the fall is not extrapolated.
    return bent[: last + 1] + [max(value, anchors[-1]) for value in bent[last + 1 :]]


def _raised(xs: Sequence[int], values: Floats, errors: Sequence[float]) -> Floats | None:
    """Measured values raised to their hull; None if one is too far below it."""
    hull = _hull(xs, values)
    around = [max(pair) for pair in zip([*errors[1:], 0.0], [0.0, *errors[:-1]], strict=True)]
    for raised, value, error, beside in zip(hull, values, errors, around, strict=True):
        noise = TOLERANCE * hypot(error, beside) * value + 1e-9 * value
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


class Guess(NamedTuple):
    """The assumed scaling of a trainer before it was measured."""

    exponent: float  # throughput is proportional to size ** exponent
    parts: tuple[float, float, float]  # the same in the model, within 3% up to 64 nodes


# Each doubling of the size brings 1.75 times the throughput: most networks of Table 2 of
# the BFTrainer paper scale better than that up to 64 nodes. For decisions that do not explore.
CAUTIOUS = Guess(0.807, (1.0, 0.136, 0.0066))
# 1.92 times, typical of the networks of Table 2. A trainer assumed to be worse than the measured
# ones would never be measured, so for exploring the guess must not be too low.
USUAL = Guess(0.941, (1.0, 0.04, 0.0007))


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
    sizes = sorted({*_powers_of_two(n_max), n_max, *(p.size for p in points)})
    if not points:
        rates = tuple(power(n, guess.exponent) for n in sizes)
        return Fitted(Curve(sizes=tuple(sizes), samples_per_s=rates), ())
    values, errors = [p.samples_per_s for p in points], [p.error for p in points]
    parts = fitted_parts([_basis(p.size) for p in points], values, errors, guess.parts, _SPREAD)
    model = [sum_of_products(_basis(size), parts) for size in sizes]  # seconds per sample
    positions = [sizes.index(p.size) for p in points]
    left_over: Floats = []  # log(measured / model), as far as it is more than noise
    for i, value, error in zip(positions, values, errors, strict=True):
        trust = LEFT_OVER * LEFT_OVER / (LEFT_OVER * LEFT_OVER + error * error)
        left_over.append(log(value * model[i]) * trust)
    at = [log2(p.size) for p in points]
    factors = [exp(_spread(at, left_over, log2(size))) for size in sizes]
    curve = [factor / seconds for factor, seconds in zip(factors, model, strict=True)]
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
    claims = [
        (p, rate_at(users_curve, p.size)) for p in points if rate_at(users_curve, p.size) > 0.0
    ]
    off = [log(p.samples_per_s / claimed) for p, claimed in claims]
    errors = [p.error for p, _ in claims]
    if not any(_differs(log_ratio, error) for log_ratio, error in zip(off, errors, strict=True)):
        return Fitted(users_curve, points, ERROR_OF_USERS)
    pairs = combinations(zip(off, errors, strict=True), 2)
    if any(_differs(a - b, hypot(of_a, of_b)) for (a, of_a), (b, of_b) in pairs):
        return fit(points, n_max, guess)
    sizes = sorted({*users_curve.sizes, *(p.size for p, _ in claims)})
    at = [log2(p.size) for p, _ in claims]
    rates = tuple(rate_at(users_curve, n) * exp(interpolated(log2(n), at, off)) for n in sizes)
    return Fitted(Curve(sizes=tuple(sizes), samples_per_s=rates), points, ERROR_UNKNOWN)


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
    weights = [1.0 / hypot(error, MODEL_ERROR) for error in errors]
    rows: list[Floats] = []  # of (model / measured - 1) / error
    for row, value, weight in zip(basis, values, weights, strict=True):
        rows.append([part_s * value * weight for part_s in row])
    columns = list(zip(*rows, strict=True))
    normal = [_products(column, columns) for column in columns]
    right = [sum_of_products(column, weights) for column in columns]
    off = [value * sum_of_products(row, guess) for value, row in zip(values, basis, strict=True)]
    scale = 1.0 / geometric_mean(off)
    parts = [part * scale for part in guess]
    for _ in range(_ROUNDS):
        pull = [1.0 / (deviation * scale * deviation * scale) for deviation in spread]
        pull[0] *= 1e-6  # the speed of one node is not known beforehand
        pulled = [row.copy() for row in normal]
        for i, force in enumerate(pull):
            pulled[i][i] += force
        towards = [
            slope + force * part * scale
            for slope, force, part in zip(right, pull, guess, strict=True)
        ]
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
    right = [right[i] / unit[i] for i in every]
    x, free = [0.0 for _ in every], set[int]()
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
            x = [x[i] + step * (solution[i] - x[i]) for i in every]
            free = {i for i in free if x[i] > 1e-15}
            x = [x[i] if i in free else 0.0 for i in every]
        x = solution
    return [x[i] / unit[i] for i in every]


def _solved(normal: list[Floats], right: Floats, free: Sequence[int]) -> Floats:
    """Solve for the free unknowns, the others being 0, by Cholesky's factors L·D·L'."""
    x = [0.0 for _ in right]
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
    return [1 << k for k in range(limit.bit_length()) if 1 << k <= limit]
