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
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from milp.problem import Curve
from milp.tables import rate_at

Floats = npt.NDArray[np.float64]
TOLERANCE = 2.0  # standard errors of a value and of its neighbours


def concave(sizes: Floats, curve: Floats, measured: Sequence[int], errors: Floats) -> Floats:
    """Return the curve, concave from (0, 0) if the values at ``measured`` allow it.

    ``errors`` are relative, of the measured values. The values in between are changed.
    """
    anchors = _raised(sizes[list(measured)], curve[list(measured)], errors)
    if anchors is None:
        return curve
    end_slope = _end_slope(sizes, curve, measured[-1])
    bent = np.minimum(curve, _ceiling(sizes, sizes[list(measured)], anchors, end_slope))
    bent[list(measured)] = anchors
    bent = _hull(sizes, bent)
    # If the curve already falls, the fall is not extrapolated.
    bent[measured[-1] + 1 :] = np.maximum(bent[measured[-1] + 1 :], anchors[-1])
    return bent


def _raised(sizes: Floats, values: Floats, errors: Floats) -> Floats | None:
    """Measured values raised to their hull; None if one is too far below it."""
    hull = _hull(sizes, values)
    around = np.maximum(np.append(errors[1:], 0.0), np.append(0.0, errors[:-1]))
    allowed = TOLERANCE * np.hypot(errors, around) * values
    return None if bool(np.any(hull - values > allowed + 1e-9 * values)) else hull


def _ceiling(sizes: Floats, xs: Floats, anchors: Floats, end_slope: float) -> Floats:
    """Return the lowest of lines through the anchors.

    Each has a slope that a concave curve through all of them can have there.
    """
    chords = np.diff(np.concatenate(([0.0], anchors))) / np.diff(np.concatenate(([0.0], xs)))
    slopes = 0.5 * (chords + np.append(chords[1:], 0.0))
    slopes[-1] = min(float(chords[-1]), end_slope)
    lines = anchors[:, None] + slopes[:, None] * (sizes[None, :] - xs[:, None])
    return np.asarray(lines.min(axis=0))


def _end_slope(sizes: Floats, curve: Floats, last: int) -> float:
    """Slope of the curve around the largest measured size, beyond which there is no chord."""
    around = np.concatenate(([0.0], sizes)), np.concatenate(([0.0], curve))
    low, high = last, min(last + 2, len(sizes))  # indices into ``around``
    rise = (around[1][high] - around[1][low]) / (around[0][high] - around[0][low])
    return max(0.0, float(rise))


def _hull(sizes: Floats, values: Floats) -> Floats:
    """The least concave function from (0, 0) that is nowhere below the values."""
    corners: list[tuple[float, float]] = [(0.0, 0.0)]
    for x, y in zip(sizes.tolist(), values.tolist(), strict=True):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                break
            corners.pop()
        corners.append((x, y))
    return np.interp(sizes, [x for x, _ in corners], [y for _, y in corners])


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

# Deviation of each part from the guess that costs as much as one standard error.
_SPREAD = np.array([1.0, 0.15, 0.02])
_ROUNDS = 3  # the guess is relative to t_compute, which is being fitted

MODEL_ERROR = 0.03  # relative: the assumed error of the model
LEFT_OVER = 0.05  # relative: the prior deviation of residuals
# Relative error of the curve per doubling of the distance to the nearest measured size.
ERROR_BETWEEN, ERROR_BEYOND, ERROR_UNKNOWN = 0.05, 0.15, 0.5

# A user's curve is wrong where it is off by more than this (in logarithms) and by more than this
# number of standard errors; until then it is assumed to have this error where not measured.
CONTRADICTS, CONTRADICTS_ERRORS, ERROR_OF_USERS = 0.05, 3.0, 0.05


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
        rates = tuple(float(n) ** guess.exponent for n in sizes)
        return Fitted(Curve(sizes=tuple(sizes), samples_per_s=rates), ())
    at = np.array(sizes, dtype=np.float64)
    xs = np.array([p.size for p in points], dtype=np.float64)
    values = np.array([p.samples_per_s for p in points])
    errors = np.array([p.error for p in points])
    parts = fitted_parts(_basis(xs), values, errors, np.array(guess.parts), _SPREAD)
    left_over = np.log(values) + np.log(_basis(xs) @ parts)  # log(measured / model)
    left_over *= LEFT_OVER**2 / (LEFT_OVER**2 + errors**2)
    curve = np.exp(_spread(np.log2(xs), left_over, np.log2(at))) / (_basis(at) @ parts)
    measured = [sizes.index(p.size) for p in points]
    curve = _bounded(at, curve, measured)
    curve = concave(at, curve, measured, errors)
    return Fitted(Curve(sizes=tuple(sizes), samples_per_s=tuple(curve.tolist())), points)


@lru_cache(maxsize=1024)
def correct(
    own: Curve, points: tuple[MeasuredSize, ...], n_max: int, guess: Guess = CAUTIOUS
) -> Fitted:
    """Return a user's curve, corrected where measurements contradict it.

    They do if one is off by more than 5% and by more than three standard errors. If all are off
    by the same factor, the level was wrong (another machine, another unit) and the shape stays:
    the ratio of measured to claimed is interpolated over log2(size), constant beyond. Otherwise
    the curve is fitted as if nothing had been claimed.
    """
    known = [(p, rate_at(own, p.size)) for p in points if rate_at(own, p.size) > 0.0]
    off = [math.log(p.samples_per_s / claimed) for p, claimed in known]
    errors = [p.error for p, _ in known]
    if not any(_differs(one, error) for one, error in zip(off, errors, strict=True)):
        return Fitted(own, points, ERROR_OF_USERS)
    pairs = combinations(zip(off, errors, strict=True), 2)
    if any(_differs(a - b, math.hypot(of_a, of_b)) for (a, of_a), (b, of_b) in pairs):
        return fit(points, n_max, guess)
    sizes = sorted({*own.sizes, *(p.size for p, _ in known)})
    at = [math.log2(p.size) for p, _ in known]
    factors = np.exp(np.interp(np.log2(np.array(sizes, dtype=np.float64)), at, off)).tolist()
    rates = tuple(rate_at(own, n) * factor for n, factor in zip(sizes, factors, strict=True))
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
    near = [p for p in (points[i - 1] if i else None, *points[i : i + 1]) if p is not None]
    per_doubling = ERROR_BETWEEN if len(near) == 2 else ERROR_BEYOND
    reach = min((abs(math.log2(size / p.size)), p.error) for p in near)
    return min(unmeasured, math.hypot(reach[1], per_doubling * reach[0]))


def _basis(sizes: Floats) -> Floats:
    """Seconds per sample of one unit of each part at each size."""
    inverse = 1.0 / sizes
    return np.stack([inverse, np.log2(sizes) * inverse, (sizes - 1.0) * inverse], axis=1)


def fitted_parts(
    basis: Floats, values: Floats, errors: Floats, guess: Floats, spread: Floats
) -> Floats:
    """Return non-negative parts by weighted least squares, regularised towards a guess.

    Args:
        basis: seconds per sample of one unit of each part, [measurement, part].
        values: measured samples per second.
        errors: their relative standard errors.
        guess: parts, up to a common factor.
        spread: deviation of each part from the guess that costs as much as one standard error,
            in units of the first part, which is free.
    """
    weights = 1.0 / np.hypot(errors, MODEL_ERROR)
    rows = basis * (values * weights)[:, None]  # of (model / measured - 1) / error
    normal, right = rows.T @ rows, rows.T @ weights
    scale = float(np.exp(np.mean(-np.log(values * (basis @ guess)))))
    parts = guess * scale
    for _ in range(_ROUNDS):
        pull = 1.0 / (spread * scale) ** 2
        pull[0] *= 1e-6  # the speed of one node is not known beforehand
        parts = _least_squares(normal + np.diag(pull), right + pull * guess * scale)
        scale = max(float(parts[0]), 1e-3 * scale)
    parts[0] = max(float(parts[0]), 1e-3 * scale)  # one node takes some time, too
    return parts


def _least_squares(normal: Floats, right: Floats) -> Floats:
    """Minimise x·normal·x/2 - right·x over x >= 0 (``normal`` is positive definite).

    The active-set method of Lawson and Hanson, for a handful of unknowns.
    """
    count = len(right)
    size = np.sqrt(np.diag(normal))  # the parts differ by orders of magnitude
    normal, right = normal / np.outer(size, size), right / size
    x, free = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(4 * count):
        slope = np.where(free, -math.inf, right - normal @ x)
        enters = int(np.argmax(slope))
        if slope[enters] <= 1e-9 * float(np.abs(right).max()):
            break
        free[enters] = True
        while True:
            wanted = np.zeros(count)
            wanted[free] = np.linalg.solve(normal[np.ix_(free, free)], right[free])
            falls = free & (wanted <= 0.0)
            if not falls.any():
                break
            step = float(np.min(x[falls] / (x[falls] - wanted[falls])))
            x = x + step * (wanted - x)
            free &= x > 1e-15
            x[~free] = 0.0
        x = wanted
    return np.asarray(x / size)


def _spread(known: Floats, left_over: Floats, at: Floats) -> Floats:
    """Interpolate the residuals linearly; halve them per doubling beyond."""
    inside = np.interp(at, known, left_over)
    beyond = np.maximum(0.0, np.maximum(known[0] - at, at - known[-1]))
    return np.asarray(inside * 0.5**beyond)


def _bounded(at: Floats, curve: Floats, measured: Sequence[int]) -> Floats:
    """Clip interpolated and extrapolated values to what sizes can do."""
    first, last = measured[0], measured[-1]
    low, high = curve.copy(), curve.copy()
    for i in range(len(at)):
        if i < first:
            low[i], high[i] = curve[first] * at[i] / at[first], curve[first]
        elif i > last:
            low[i], high[i] = curve[last], curve[last] * at[i] / at[last]
        elif i not in measured:
            k = bisect_left(measured, i)
            left, right = measured[k - 1], measured[k]
            low[i] = min(curve[left], curve[right])
            high[i] = max(curve[right], curve[left] * at[i] / at[left])
    return np.clip(curve, low, high)


def _powers_of_two(limit: int) -> list[int]:
    return [1 << k for k in range(limit.bit_length()) if 1 << k <= limit]
