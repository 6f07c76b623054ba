"""Reports of progress become statistics of a size."""

from __future__ import annotations

import random
from statistics import mean, stdev

import pytest

from bftrainer.decide.throughput.curves import (
    LEAST_ERROR,
    OBSERVE_S,
    SETTLE_S,
    SETTLE_STEPS,
    WINDOW,
    Observation,
    add,
    add_sample,
    deviation,
    error_of,
)
from bftrainer.model.trainer import SizeThroughput

BEGIN = Observation(generation=4, size=2, step=100, samples=10_000, at_s=50.0)


def _report(
    watch: Observation, step: int, samples: int, now_s: float
) -> tuple[Observation, float | None]:
    return add_sample(watch, generation=4, step=step, samples=samples, now_s=now_s)


def test_the_first_steps_after_a_rescale_do_not_count() -> None:
    soon, rate = _report(BEGIN, 100 + SETTLE_STEPS, 10_300, 50.0 + SETTLE_S / 2)
    assert (soon, rate) == (BEGIN, None)
    few, rate = _report(BEGIN, 100 + SETTLE_STEPS - 1, 10_300, 50.0 + 9 * SETTLE_S)
    assert (few, rate) == (BEGIN, None)
    settled, rate = _report(BEGIN, 110, 11_000, 60.0)
    assert rate is None
    assert settled.is_settled
    # However slow those steps were, the observation begins after them.
    _, rate = _report(settled, 120, 12_000, 60.0 + OBSERVE_S)
    assert rate == pytest.approx(1000.0 / OBSERVE_S)


def test_late_and_foreign_reports_change_nothing() -> None:
    settled, _ = _report(BEGIN, 110, 11_000, 60.0)
    assert _report(settled, 110, 11_000, 63.0) == (settled, None)
    assert _report(settled, 109, 10_900, 63.0) == (settled, None)
    assert add_sample(settled, generation=5, step=200, samples=99_999, now_s=70.0) == (
        settled,
        None,
    )
    assert _report(settled, 112, 11_200, 60.0 + OBSERVE_S / 2) == (settled, None)


def _after(rates: list[float]) -> SizeThroughput:
    known: tuple[SizeThroughput, ...] = ()
    for k, rate in enumerate(rates):
        known = add(known, 3, rate, float(k))
    (only,) = known
    return only


def test_mean_and_deviation_are_those_of_the_observations() -> None:
    chance = random.Random(5)  # noqa: S311 - reproducible noise
    rates = [chance.gauss(400.0, 20.0) for _ in range(int(WINDOW))]
    known = _after(rates)
    assert known.count == pytest.approx(WINDOW)
    assert known.mean_samples_per_s == pytest.approx(mean(rates))
    assert deviation(known) == pytest.approx(stdev(rates), rel=0.05)
    assert error_of(known) == pytest.approx(stdev(rates) / mean(rates) / WINDOW**0.5, rel=0.05)


def test_the_window_follows_a_slow_change_and_stays_bounded() -> None:
    known = _after([100.0 - 0.1 * k for k in range(400)])
    assert known.count <= WINDOW + 1e-9
    assert known.mean_samples_per_s == pytest.approx(60.0 + 0.1 * WINDOW, rel=0.03)


def test_a_stall_moves_the_mean_little() -> None:
    steady = [500.0, 505.0, 495.0] * 4
    disturbed = _after([*steady, 0.0])
    assert disturbed.mean_samples_per_s > 485.0


def test_errors_of_few_observations_are_those_that_are_usual() -> None:
    assert error_of(_after([100.0])) == pytest.approx(0.05)
    assert error_of(_after([100.0] * 30)) >= LEAST_ERROR
    assert error_of(SizeThroughput(size=1)) == 1.0
