"""The synthetic machine: the same from a seed, and like what is published about Summit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bftrainer.batch.traces import SAMPLE, Fragments, TraceError, read_trace
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.batch.traces.statistics import statistics

CALM: dict[str, Any] = {"load_sigma": 0.0, "hole_sigma": 0.5}  # means settle in two days
COLUMNS = ("node", "start_s", "end_s", "observed_s", "is_unfillable")


def test_the_shipped_sample_is_what_its_command_makes() -> None:
    made = generate(GeneratorParameters(n_nodes=256, hours=48, seed=2))
    shipped = read_trace(SAMPLE)
    assert SAMPLE.stat().st_size <= 300_000
    assert made.names == shipped.names
    assert list(made.span_s) == list(shipped.span_s) == [0, 48 * 3600]
    for name in COLUMNS:
        assert getattr(made, name).tobytes() == getattr(shipped, name).tobytes(), name


def test_a_seed_makes_a_trace_and_another_seed_another() -> None:
    parameters = GeneratorParameters(n_nodes=64, hours=6, seed=7)
    once, again = generate(parameters), generate(parameters)
    other = generate(replace(parameters, seed=8))
    assert once.start_s.tobytes() == again.start_s.tobytes()
    assert once.start_s.tobytes() != other.start_s.tobytes()


def test_times_are_whole_polls_from_the_start_asked_for() -> None:
    trace = generate(GeneratorParameters(n_nodes=32, hours=5, start_s=1_000_000, poll_s=30))
    assert list(trace.span_s) == [1_000_000, 1_018_000]
    assert not np.any((trace.start_s - 1_000_000) % 30)
    assert not np.any((trace.end_s - 1_000_000) % 30)


@pytest.fixture(scope="module")
def two_weeks() -> Fragments:
    """What the paper observed: all nodes of Summit for two weeks, gaps under 70 s left out."""
    whole = generate(GeneratorParameters(n_nodes=4734, hours=336, seed=2))
    return whole.where(whole.length_s >= 70)


def test_two_weeks_are_like_the_papers_section_2_1(two_weeks: Fragments) -> None:
    """Tolerances are twice the spread over seeds, which is what two weeks vary by."""
    numbers = statistics(two_weeks)
    assert numbers.short_share == pytest.approx(0.58, abs=0.03)
    assert numbers.short_time_share == pytest.approx(0.10, abs=0.02)
    assert numbers.idle_share == pytest.approx(0.086, abs=0.025)
    assert numbers.events_per_hour == pytest.approx(68, rel=0.06)
    assert numbers.joins_per_hour == pytest.approx(42, rel=0.06)
    assert numbers.leaves_per_hour == pytest.approx(31, rel=0.06)
    assert numbers.length_s["mean"] == pytest.approx(1205, rel=0.12)


def test_the_pool_swings_as_widely_as_the_observed_one(two_weeks: Fragments) -> None:
    """Observed in the week of the paper's replay: p25 15, p50 89, p75 438, p95 1,659 nodes."""
    pool = statistics(two_weeks).pool_nodes
    assert pool["p25"] < 150
    assert pool["p50"] < 300
    assert 300 < pool["p75"] < 700
    assert 900 < pool["p95"] < 2500


def test_short_gaps_are_their_share_and_disturb_no_long_one() -> None:
    parameters = GeneratorParameters(n_nodes=4734, hours=48, seed=3, **CALM)
    some = generate(replace(parameters, short_gap_share=0.5))
    none = generate(replace(parameters, short_gap_share=0))
    is_whole = (none.start_s > none.span_s[0]) & (none.end_s < none.span_s[1])
    assert none.length_s[is_whole].min() == 70
    assert np.mean(some.length_s < 70) == pytest.approx(0.5, abs=0.05)
    assert some.length_s.min() == 10
    assert some.length_s.sum() == pytest.approx(none.length_s.sum(), rel=0.1)


def test_a_bigger_machine_is_idle_to_the_same_share() -> None:
    small = generate(GeneratorParameters(n_nodes=4734, hours=48, seed=4, **CALM))
    big = generate(GeneratorParameters(n_nodes=9468, hours=48, seed=4, **CALM))
    assert big.idle_share() == pytest.approx(small.idle_share(), rel=0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"n_nodes": 0}, {"hours": float("nan")}, {"short_gap_share": 1.0}, {"length_shape": 0.0}],
)
def test_parameters_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=next(iter(wrong))) as caught:
        generate(GeneratorParameters(**wrong))
    assert caught.value.code == "BFT-4009"
