"""exp, log and the like, by the decimal module, which rounds correctly."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from random import Random

import pytest

from milp.portable import (
    LN2,
    LN2_HIGH,
    LN2_LOW,
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
from milp.tables import rate_at, rates_up_to

EXACT = Context(prec=40)
TWO = EXACT.ln(Decimal(2))
PER_NODE = 0.807


def _off(value: float, true: Decimal) -> float:
    """How many units in the last place a value is off."""
    return float(abs(Decimal(value) - true) / Decimal(math.ulp(value)))


def _draws(low: float, high: float, count: int = 300) -> list[float]:
    chance = Random(f"{low} {high}")  # noqa: S311 - no secret
    return [chance.uniform(low, high) for _ in range(count)]


def test_the_parts_of_ln_2_are_those() -> None:
    assert _off(LN2, TWO) <= 0.5
    assert abs(Decimal(LN2_HIGH) + Decimal(LN2_LOW) - TWO) < Decimal("1e-26")
    assert Decimal(LN2_HIGH) * 2**33 % 1 == 0  # so that 2**20 times it is exact


@pytest.mark.parametrize("reach", [0.01, 1.0, 30.0, 700.0])
def test_exp_is_good_to_two_units(reach: float) -> None:
    for x in _draws(-reach, reach):
        assert _off(exp(x), EXACT.exp(Decimal(x))) <= 2.0
        assert _off(exp2(x), EXACT.exp(Decimal(x) * TWO)) <= 2.0


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (1e-9, 1.0), (1.0, 1e9), (1e-300, 1e300)])
def test_log_is_good_to_three_units(low: float, high: float) -> None:
    for x in _draws(low, high):
        assert _off(log(x), EXACT.ln(Decimal(x))) <= 3.0
        assert _off(log2(x), EXACT.divide(EXACT.ln(Decimal(x)), TWO)) <= 3.0


def test_a_power_of_a_size_is_good_to_20_units() -> None:
    for x in _draws(1.0, 1e6):
        true = EXACT.exp(EXACT.multiply(Decimal(PER_NODE), EXACT.ln(Decimal(x))))
        assert _off(power(x, PER_NODE), true) <= 20.0


def test_powers_of_two_are_exact() -> None:
    for k in range(-300, 300):
        assert log2(2.0**k) == k
        assert exp2(float(k)) == 2.0**k
    assert (exp(0.0), log(1.0), log2(1.0)) == (1.0, 0.0, 0.0)


def test_what_is_too_small_is_nothing_and_what_is_too_large_raises() -> None:
    assert exp(-800.0) == exp2(-1e12) == 0.0
    with pytest.raises(OverflowError):
        exp(710.0)


def test_digits_are_these_everywhere() -> None:
    # Each step is rounded as IEEE 754 has it, so no processor may say anything else. -1.5 is exact.
    assert exp(-1.5) == float(EXACT.exp(Decimal("-1.5")))
    assert log(977.0) == float.fromhex("0x1.b89b6de7116d1p+2") == float(EXACT.ln(Decimal(977)))


def test_sums_of_products_are_rounded_once() -> None:
    # 1e16 + 1 - 1e16 from left to right is 0.
    assert sum_of_products([1e8, 1.0, -1e8], [1e8, 1.0, 1e8]) == 1.0
    assert hypot(3.0, 4.0) == 5.0
    assert geometric_mean([2.0, 8.0, 4.0]) == pytest.approx(4.0, rel=1e-15)


def test_between_points_is_a_line_and_beyond_them_nothing_new() -> None:
    xs, ys = (0.0, 10.0, 20.0), (5.0, 7.0, -3.0)
    points = [
        (-1.0, 5.0),
        (0.0, 5.0),
        (5.0, 6.0),
        (10.0, 7.0),
        (12.5, 4.5),
        (20.0, -3.0),
        (99.0, -3.0),
    ]
    assert [interpolated(x, xs, ys) for x, _ in points] == [y for _, y in points]
    assert interpolated(3.0, (1.0,), (8.0,)) == 8.0


def test_a_curve_is_the_same_at_one_size_and_at_many() -> None:
    curve = Curve(sizes=(1, 3, 8), samples_per_s=(10.0, 25.0, 30.0))
    rates = rates_up_to(curve, 11).tolist()
    # 10 a node, then 7.5, then 1; nothing beyond 8.
    assert rates == [0.0, 10.0, 17.5, 25.0, 26.0, 27.0, 28.0, 29.0, 30.0, 30.0, 30.0, 30.0]
    assert rates == [rate_at(curve, n) for n in range(12)]
    assert rates_up_to(curve, 1).tolist() == [0.0, 10.0]
    assert rate_at(curve, 0.5) == 5.0
    long = Curve(sizes=(1, 10**9), samples_per_s=(2.0, 2.0))  # no array of so many
    assert rates_up_to(long, 3).tolist() == [0.0, 2.0, 2.0, 2.0]
