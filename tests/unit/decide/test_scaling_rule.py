"""The scaling rule of Or et al. by hand, and what holds of it for any measurements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.decide.policies.scaling_rule import (
    Condition,
    Payoff,
    Throughput,
    efficiency,
    next_size,
)
from bftrainer.decide.throughput.fit import MeasuredSize
from bftrainer.decide.throughput.stragglers import Field, entered, record_report

AT_ONCE = Throughput(standard_errors=0.0)


def step(size: int, rates: dict[int, float], *, least: int = 4, most: int = 64) -> int:
    """Return the next size by 4 from samples per second by size."""
    known = {n: MeasuredSize(n, rate, 0.0) for n, rate in rates.items()}
    return next_size(size, known, AT_ONCE, step=4, least=least, most=most)


def test_scaling_efficiency_as_in_section_4_2_1() -> None:
    four = MeasuredSize(4, 400.0, 0.0)
    assert efficiency(four, MeasuredSize(5, 500.0, 0.0)) == 1.0
    assert efficiency(four, MeasuredSize(5, 450.0, 0.0)) == 0.5
    assert efficiency(four, MeasuredSize(8, 380.0, 0.0)) < 0.0


def test_measures_before_it_moves() -> None:
    assert step(8, {}) == 8
    assert step(8, {4: 10.0}) == 8


def test_grows_while_the_condition_holds() -> None:
    assert step(8, {8: 8.0}) == 12
    assert step(12, {8: 8.0, 12: 11.0}) == 16
    assert step(64, {60: 50.0, 64: 53.0}) == 64


def test_goes_back_to_the_size_before_the_first_failure_and_stays() -> None:
    rates = {8: 8.0, 12: 11.0, 16: 11.1}
    assert step(16, rates) == 12
    assert step(12, rates) == 12


def test_a_failure_at_once_leads_two_steps_down_and_on_until_the_condition_holds() -> None:
    """Section 4.1 and Fig. 3: settled at the upper of the first two that differ enough."""
    rates = {20: 10.0, 24: 10.1}
    assert step(24, rates) == 16
    assert step(16, {**rates, 16: 9.9}) == 12
    down = {**rates, 16: 9.9, 12: 7.0}
    assert step(12, down) == 16
    assert step(16, down) == 16


def test_the_floor_is_the_end_of_the_search() -> None:
    assert step(8, {4: 10.0, 8: 10.1}) == 4
    assert step(4, {4: 10.0, 8: 10.1}) == 4


def test_the_first_move_is_inwards_at_the_upper_limit() -> None:
    assert step(64, {64: 50.0}) == 60
    assert step(60, {64: 50.0, 60: 40.0}) == 64


def test_moves_again_when_a_measurement_or_a_limit_changes() -> None:
    rates = {8: 8.0, 12: 11.0}
    assert step(12, rates, most=12) == 12
    assert step(12, rates, most=16) == 16
    assert step(12, rates | {12: 8.1}, most=12) == 4
    assert step(12, rates | {12: 8.1}, least=10) == 16  # 8 is no size any more


def test_measures_on_while_s_is_within_two_standard_errors_of_the_threshold() -> None:
    """s is magnified by 32 / 4: 5% off at both sizes is 60% off."""
    low, high = MeasuredSize(32, 32.0, 0.05), MeasuredSize(36, 35.2, 0.05)
    assert Throughput().holds(low, high) is None
    assert AT_ONCE.holds(low, high) is True
    assert Throughput().holds(low._replace(error=0.01), high._replace(error=0.01)) is True
    worse = high._replace(samples_per_s=31.0, error=0.01)
    assert Throughput().holds(low._replace(error=0.01), worse) is False
    assert next_size(36, {32: low, 36: high}, Throughput(), step=4, least=4, most=64) == 36


def test_utility_overrides_the_throughput() -> None:
    """U falls by a dollar a second: 4 workers take 10 s, 8 take 6 s and cost 8 node-s more."""
    payoff = Payoff(utility=((0.0, 100.0), (100.0, 0.0)), price=0.4, past_s=0.0, left_samples=10.0)
    slow, fast = MeasuredSize(4, 1.0, 0.0), MeasuredSize(8, 10.0 / 6.0, 0.0)
    assert payoff.of(slow) == pytest.approx(90.0 - 16.0)
    assert payoff.of(fast) == pytest.approx(94.0 - 19.2)
    assert payoff.holds(slow, fast)
    assert payoff.worth(slow, fast) == pytest.approx(0.8 / 4)
    late = Payoff(utility=((0.0, 100.0), (100.0, 0.0)), price=0.4, past_s=95.0, left_samples=10.0)
    assert not late.holds(slow, fast)  # nothing to be gained any more


@given(
    st.dictionaries(st.integers(1, 24), st.floats(0.1, 100.0), min_size=1),
    st.integers(1, 5),
    st.integers(1, 24),
    st.booleans(),
)
def test_comes_to_rest_whatever_was_measured(
    rates: dict[int, float], k: int, start: int, is_payoff: bool
) -> None:
    """No two sizes are exchanged for ever; measurements that are missing are made."""
    payoff = Payoff(utility=((0.0, 9.0), (50.0, 0.0)), price=0.01, past_s=0.0, left_samples=99.0)
    condition: Condition = payoff if is_payoff else AT_ONCE
    points = {n: MeasuredSize(n, rate, 0.0) for n, rate in rates.items()}
    size = start
    for _ in range(80):
        points.setdefault(size, MeasuredSize(size, float(size), 0.0))
        goal = next_size(size, points, condition, step=k, least=1, most=24)
        assert 1 <= goal <= 24
        assert abs(goal - size) <= 2 * k
        if goal == size:
            return
        size = goal
    pytest.fail("still moving")


@pytest.mark.parametrize(("slowdown", "steps"), [(4.0, 3), (2.0, 5), (4.0 / 3.0, 16)])
def test_stragglers_are_found_as_by_algorithm_1(slowdown: float, steps: int) -> None:
    """The daemon's detector passes over the first 2 reports, and compares when the next begin."""
    average, found = 1.0, 0
    while average >= 0.8:
        average, found = 0.1 / slowdown + 0.9 * average, found + 1
    assert found == steps
    names = [f"w{i}" for i in range(8)]
    seen, reports = entered(Field(), 1, names), 0
    while not seen.slow():
        reports += 1
        for name in names:
            own_s = slowdown if name == "w0" else 1.0
            seen = record_report(seen, name, generation=1, own_s=own_s, share=128, threshold=0.8)
    assert seen.slow().keys() == {"w0"}
    assert reports == steps + 3
