"""Functions whose every digit is the same on all processors; what a plan holds is made of these.

A journal copied to another machine must give the same plans there (``bftrainer replay``). IEEE 754
fixes each digit of +, -, *, / and the square root, and so of a sum in a stated order. It does not
fix those of BLAS, which chooses kernels and the order of its sums by processor, nor those of exp,
log and powers: the C library has several of each, with and without fused multiplication, as has
numpy. ``numpy.interp`` multiplies and adds in one expression of C, which compilers may fuse.

Python and numpy's elementwise operations round after every step. So exp and log here are series,
good to three units in the last place, and ``math.fsum``, which is exact, adds up. ``sum`` does not:
since Python 3.12 it compensates for rounding.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache

LN2 = 0.6931471805599453
# Together ln 2 to 26 digits; the first times a whole number up to 2**20 is exact.
LN2_HIGH, LN2_LOW = 0.6931471804855391, 7.440617110012397e-11
SQRT_HALF = 0.7071067811865476

_EXP = tuple([1.0 / math.factorial(n) for n in range(14, -1, -1)])  # of r**14, ..., of 1
_LOG = tuple([1.0 / (2 * n + 1) for n in range(11, 0, -1)])  # of s**22, ..., of s**2


def exp(x: float) -> float:
    """Return e to the power x.

    Raises:
        OverflowError: it is beyond the largest number.
    """
    twos = math.floor(x / LN2 + 0.5)
    r = (x - twos * LN2_HIGH) - twos * LN2_LOW  # within half of ln 2
    series = 0.0  # of e to the power r
    for factor in _EXP:
        series = series * r + factor
    return math.ldexp(series, twos)


def log(x: float) -> float:
    """Return the natural logarithm of a number > 0, which is finite."""
    part, twos = _halved(x)
    return twos * LN2_HIGH + (_log_near_1(part) + twos * LN2_LOW)


@lru_cache(maxsize=1024)  # of sizes, mostly
def log2(x: float) -> float:
    """Return the logarithm to base 2 of a number > 0, which is finite; exact for powers of two."""
    part, twos = _halved(x)
    return twos + _log_near_1(part) / LN2


def exp2(x: float) -> float:
    """Return 2 to the power x; exact for whole numbers.

    Raises:
        OverflowError: it is beyond the largest number.
    """
    twos = math.floor(x + 0.5)
    return math.ldexp(exp((x - twos) * LN2), twos)


def power(base: float, exponent: float) -> float:
    """Return a number > 0 to a power, to 20 units in the last place where it is below a million.

    Raises:
        OverflowError: it is beyond the largest number.
    """
    return exp(exponent * log(base))


def hypot(x: float, y: float) -> float:
    """Return the square root of the sum of two squares, of numbers that are no extremes."""
    return math.sqrt(x * x + y * y)


def sum_of_products(row: Iterable[float], other: Iterable[float]) -> float:
    """Return the sum of the products of two rows of the same length, rounded once."""
    return math.fsum([x * y for x, y in zip(row, other, strict=True)])


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of numbers > 0, of which there is one at least."""
    logs = list(map(log, values))
    return exp(math.fsum(logs) / len(logs))


def interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return y at x, linear between points and constant beyond them; ``xs`` do not fall."""
    at = bisect_right(xs, x)
    if at == 0:
        return ys[0]
    if at == len(xs) or x == xs[at - 1]:
        return ys[at - 1]
    slope = (ys[at] - ys[at - 1]) / (xs[at] - xs[at - 1])
    return slope * (x - xs[at - 1]) + ys[at - 1]


def _halved(x: float) -> tuple[float, int]:
    """Return the number over a power of two, from 0.7 to 1.4, and the exponent of that."""
    part, twos = math.frexp(x)
    if part < SQRT_HALF:
        return 2.0 * part, twos - 1
    return part, twos


def _log_near_1(x: float) -> float:
    """Return log x = 2 artanh s, s = (x - 1) / (x + 1)."""
    s = (x - 1.0) / (x + 1.0)
    square, series = s * s, 0.0
    for factor in _LOG:
        series = series * square + factor
    return 2.0 * s + 2.0 * s * (square * series)
