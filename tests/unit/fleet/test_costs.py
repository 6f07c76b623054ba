"""What a rescale and a generation teach."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bftrainer.decide.throughput.curves import MAX_SIZES, Observation
from bftrainer.fleet.generations.members import Rescaled
from bftrainer.fleet.trainers.costs import (
    FIRST_COUNT,
    NOISE,
    learn_leaving,
    learn_progress,
    learn_rescale,
    learn_throughput,
)
from bftrainer.ground.protocol import Progress
from bftrainer.model.trainer import MeasuredCosts, TrainerProgress
from milp.problem import Curve
from tests.support.snapshots import record


def _rescaled(before: int, after: int, pause_s: float, reason: str = "planned") -> Rescaled:
    return Rescaled(
        generation=3,
        attempt=1,
        size_before=before,
        size=after,
        reason=reason,
        pause_s=pause_s,
        formation_s=1.0,
        step=10,
        epoch=0,
        samples=100,
        nodes=(),
        resumed_from="",
    )


def test_grow_and_shrink_are_learnt_apart() -> None:
    costs = learn_rescale(MeasuredCosts(), _rescaled(1, 2, 0.3))
    assert (costs.rescale_up_s, costs.rescale_down_s) == (0.3, None)
    costs = learn_rescale(costs, _rescaled(2, 1, 0.05))
    assert (costs.rescale_up_s, costs.rescale_down_s) == (0.3, 0.05)


@pytest.mark.parametrize(
    "done",
    [
        _rescaled(0, 2, 0.3, "start"),
        _rescaled(0, 2, 0.3),
        _rescaled(3, 2, 0.3, "a member was lost"),
        _rescaled(2, 2, 0.3),
    ],
)
def test_starts_losses_and_equal_sizes_teach_nothing(done: Rescaled) -> None:
    assert learn_rescale(MeasuredCosts(), done) == MeasuredCosts()


def test_noise_changes_nothing_and_a_real_change_half() -> None:
    known = MeasuredCosts(rescale_up_s=1.0)
    for pause_s in (1.0 - NOISE, 1.0, 1.0 + NOISE):
        assert learn_rescale(known, _rescaled(1, 2, pause_s)) == known
    assert learn_rescale(known, _rescaled(1, 2, 2.0)).rescale_up_s == 1.5
    assert learn_rescale(MeasuredCosts(rescale_up_s=0.0), _rescaled(1, 2, 0.2)).rescale_up_s == 0.1


def test_repeated_measurements_settle() -> None:
    costs = MeasuredCosts(rescale_down_s=8.0)
    seen = []
    for _ in range(20):
        costs = learn_rescale(costs, _rescaled(4, 2, 0.1))
        seen.append(costs.rescale_down_s)
    assert seen[-1] is not None
    assert seen[-1] == seen[-2]
    assert abs(seen[-1] - 0.1) <= NOISE * seen[-1]


# ---- throughput --------------------------------------------------------------------


def _observed(costs: MeasuredCosts, size: int, *rates: float) -> MeasuredCosts:
    for k, rate in enumerate(rates):
        costs = learn_throughput(costs, size, rate, float(k))
    return costs


def test_a_size_is_told_once_there_are_some_observations() -> None:
    few = _observed(MeasuredCosts(), 4, *[300.0] * (int(FIRST_COUNT) - 1))
    assert few.samples_per_s_by_size == ()
    known = _observed(few, 4, 300.0)
    known = _observed(known, 1, 100.0, 101.0, 99.0)
    assert dict(known.samples_per_s_by_size) == pytest.approx({1: 100.0, 4: 300.0})
    assert [one.size for one in known.throughput] == [1, 4]


def test_what_is_told_does_not_follow_noise_but_a_real_change() -> None:
    told = _observed(MeasuredCosts(), 2, *[200.0, 206.0, 194.0] * 10)
    steady = _observed(told, 2, *[202.0, 198.0] * 5)
    assert steady.samples_per_s_by_size == told.samples_per_s_by_size
    slower = _observed(steady, 2, *[150.0] * 100)
    assert dict(slower.samples_per_s_by_size)[2] == pytest.approx(150.0, rel=0.03)


def test_of_a_size_that_is_left_one_observation_is_enough() -> None:
    once = _observed(MeasuredCosts(), 4, 310.0)
    assert once.samples_per_s_by_size == ()
    assert learn_leaving(once, 4).samples_per_s_by_size == ((4, 310.0),)


def test_a_size_that_is_left_before_an_observation_is_as_unknown_as_before() -> None:
    assert learn_leaving(MeasuredCosts(), 2) == MeasuredCosts()


def test_no_throughput_is_no_measurement() -> None:
    assert learn_throughput(MeasuredCosts(), 2, 0.0, 0.0) == MeasuredCosts()


def test_memory_is_bounded_and_the_oldest_size_is_forgotten() -> None:
    costs = MeasuredCosts()
    for size in range(1, MAX_SIZES + 6):
        for k in range(3):
            costs = learn_throughput(costs, size, 10.0 * size, 100.0 * size + k)
    assert len(costs.throughput) == len(costs.samples_per_s_by_size) == MAX_SIZES
    assert costs.samples_per_s_by_size[0][0] == 6


def _said(generation: int, step: int, samples: int) -> Progress:
    return Progress(
        generation=generation, step=step, epoch=0, samples=samples, step_s=0.1, samples_per_s=1.0
    )


def test_reports_become_observations_of_the_generation_at_hand() -> None:
    trainer = record()
    watch: Observation | None = Observation(generation=2, size=3, step=0, samples=0, at_s=0.0)
    for k in range(1, 40):  # 100 samples a step, two steps a second, every report twice
        for _ in range(2):
            said = _said(2, k, 100 * k)
            watch, costs = learn_progress(watch, trainer, said, 3, 0.5 * k)
            trainer = replace(trainer, costs=costs)
    _, costs = learn_progress(watch, trainer, _said(1, 99, 10**9), 3, 50.0)
    assert costs == trainer.costs
    assert [one.size for one in costs.throughput] == [3]
    assert dict(costs.samples_per_s_by_size) == pytest.approx({3: 200.0})


def test_a_daemon_that_has_just_started_watches_the_generation_that_runs() -> None:
    runs = replace(record(), progress=TrainerProgress(generation=5, size=2))
    assert learn_progress(None, runs, _said(6, 1, 10), 2, 1.0)[0] is None
    assert learn_progress(None, runs, _said(5, 1, 10), 3, 1.0)[0] is None
    watch, costs = learn_progress(None, runs, _said(5, 1, 10), 2, 1.0)
    assert watch == Observation(generation=5, size=2, step=1, samples=10, at_s=1.0)
    assert costs is runs.costs


# ---- what nobody can believe ---------------------------------------------------------


def test_a_report_of_absurdly_many_samples_teaches_nothing_and_the_next_is_heard() -> None:
    trainer = record()
    watch: Observation | None = Observation(
        generation=2, size=1, step=0, samples=0, at_s=0.0, is_settled=True
    )
    for samples in (10**18 - 1, 10**400):
        watch, costs = learn_progress(watch, trainer, _said(2, 5, samples), 1, 5.0)
        assert costs == MeasuredCosts()
    _, costs = learn_progress(watch, trainer, _said(2, 6, 600), 1, 6.0)
    assert costs.throughput[0].mean_samples_per_s == 100.0


@pytest.mark.parametrize("rate", [1.9e16, 1e-20, -1.0, float("nan"), float("inf")])
def test_a_rate_beyond_anything_real_is_no_measurement(rate: float) -> None:
    assert learn_throughput(MeasuredCosts(), 2, rate, 0.0) == MeasuredCosts()


def test_a_jump_counts_as_ten_times_what_was_shown_in_proportion_to_the_nodes() -> None:
    shown = _observed(MeasuredCosts(), 1, 100.0)
    jumped = learn_throughput(shown, 4, 1e8, 1.0)
    assert [one.mean_samples_per_s for one in jumped.throughput] == [100.0, 4000.0]


def test_a_first_measurement_counts_as_ten_times_what_was_declared() -> None:
    declared = Curve(sizes=(1, 4), samples_per_s=(100.0, 300.0))
    first = learn_throughput(MeasuredCosts(), 4, 1e8, 1.0, declared)
    assert first.throughput[0].mean_samples_per_s == 4000.0
    honest = learn_throughput(MeasuredCosts(), 4, 450.0, 1.0, declared)
    assert honest.throughput[0].mean_samples_per_s == 450.0


@pytest.mark.parametrize(("said_s", "known_s"), [(1e300, 3600.0), (-5.0, 0.0), (math.nan, 0.0)])
def test_a_pause_that_nobody_can_believe_is_bounded(said_s: float, known_s: float) -> None:
    assert learn_rescale(MeasuredCosts(), _rescaled(1, 2, said_s)).rescale_up_s == known_s
