"""What a plan is made of: stages, scaling profiles, clouds, the closed form of its cost."""

from __future__ import annotations

import itertools

import pytest

from bftrainer.study.plan.exact import exact
from bftrainer.study.plan.problem import (
    Billing,
    Cloud,
    PlanStage,
    ScalingProfile,
    rung_stages,
    scaling_of,
    sha_stages,
)
from bftrainer.study.plan.stage_cost import Costs, simulate
from bftrainer.study.rungs import Sha
from milp.problem import Curve

HALVING = ScalingProfile(gpus=(1, 2, 4), unit_s=(8.0, 4.0, 2.0))


def test_the_papers_studies() -> None:
    assert [(s.trials, s.units) for s in sha_stages(32, 1, 50, 3)] == [
        (32, 1),
        (10, 3),
        (3, 9),
        (1, 37),
    ]
    long = sha_stages(512, 4, 4096, 2)
    assert (len(long), long[0], long[-1]) == (
        10,
        PlanStage(trials=512, units=4),
        PlanStage(trials=1, units=2052),
    )
    assert sum(stage.units for stage in long) == 4096


def test_a_study_that_is_over_before_one_trial_is_left() -> None:
    assert [s.units for s in sha_stages(16, 2, 5, 2)] == [2, 3]
    with pytest.raises(ValueError, match="eta"):
        sha_stages(4, 1, 9, 1)


def test_a_ladder_becomes_increments() -> None:
    stages = rung_stages(Sha(trials=9, least=1, most=9, eta=3))
    assert [(s.trials, s.units) for s in stages] == [(9, 1), (3, 2), (1, 6)]


def test_profiles_are_straight_in_logarithms() -> None:
    profile = ScalingProfile(gpus=(1, 4, 8), unit_s=(16.0, 4.0, 3.0))
    assert profile.mean_s(1) == 16.0
    assert profile.mean_s(2) == pytest.approx(8.0)
    assert profile.mean_s(16) == pytest.approx(3.0 * 3.0 / 4.0)
    assert ScalingProfile(gpus=(2,), unit_s=(5.0,)).mean_s(1) == 10.0
    assert ScalingProfile(gpus=(2,), unit_s=(5.0,)).mean_s(8) == 5.0


def test_more_gpus_are_never_slower() -> None:
    profile = ScalingProfile(gpus=(1, 2, 4, 8), unit_s=(8.0, 4.0, 6.0, 3.0))
    times = [profile.mean_s(n) for n in range(1, 33)]
    assert all(a >= b for a, b in itertools.pairwise(times))
    assert profile.mean_s(4) == 4.0
    assert profile.share(8, 2) == (2, 2)  # what makes it no faster stays idle


def test_sizes_of_a_trial() -> None:
    profile = ScalingProfile(gpus=(1, 2, 4, 8), unit_s=(8.0, 4.0, 2.5, 1.0), n_min=2, n_max=4)
    assert profile.share(16, 2) == (4, 2)
    assert profile.share(6, 3) == (2, 3)
    assert profile.share(5, 3) == (2, 2)  # two at once, then the third
    assert profile.share(1, 3) == (2, 0)
    costs = Costs((PlanStage(trials=3, units=1),), profile, Cloud(price_h=3600.0))
    assert costs.predict((5,)).time_s == 8.0
    assert costs.predict((1,)).time_s == float("inf")
    planned = exact(costs, 5.0, 16)
    assert planned is not None
    assert (planned.gpus, planned.time_s) == ((6,), 4.0)
    assert exact(costs, 1e6, 1) is None
    with pytest.raises(ValueError, match="n_min"):
        ScalingProfile(gpus=(1,), unit_s=(1.0,), n_min=2, n_max=1)


def test_a_trial_has_one_of_its_sizes() -> None:
    profile = ScalingProfile(
        gpus=(1, 6, 8), unit_s=(9.0, 2.0, 2.0), n_min=2, n_max=8, sizes=(2, 4, 8)
    )
    shares = [profile.share(each, 1)[0] for each in (2, 3, 4, 5, 6, 7, 8, 20)]
    assert shares == [2, 2, 4, 4, 4, 4, 8, 8]


@pytest.mark.parametrize(
    ("gpus", "unit_s"), [((), ()), ((0, 1), (1.0, 1.0)), ((2, 1), (1.0, 2.0)), ((1,), (0.0,))]
)
def test_no_profile(gpus: tuple[int, ...], unit_s: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="size"):
        ScalingProfile(gpus=gpus, unit_s=unit_s)


def test_a_curve_becomes_a_profile() -> None:
    profile = scaling_of(Curve(sizes=(1, 2), samples_per_s=(100.0, 160.0)), 1000.0, spread=0.1)
    assert (profile.unit_s, profile.spread) == ((10.0, 6.25), 0.1)
    with pytest.raises(ValueError, match="throughput"):
        scaling_of(Curve(sizes=(1,), samples_per_s=(0.0,)), 1000.0)


def test_a_plan_by_hand() -> None:
    """Two stages: 4 trials of 2 units on 4 GPUs, then 1 trial of 3 units on 8."""
    stages = (PlanStage(trials=4, units=2), PlanStage(trials=1, units=3))
    cloud = Cloud(gpus_per_instance=4, price_h=3600.0, scale_s=10.0, init_s=5.0, data_price=7.0)
    planned = Costs(stages, HALVING, cloud).predict((4, 8))
    first, second = planned.stages
    assert (first.time_s, first.cost) == (15.0 + 16.0, 5.0 + 16.0 + 7.0)
    # The old instance is paid while the new one comes; both train for 3 s.
    assert (second.time_s, second.cost) == (15.0 + 3.0, 15.0 + 5.0 + 2 * 3.0 + 7.0)
    assert planned.time_s == first.time_s + second.time_s


def test_of_equal_prices_the_soonest_is_taken() -> None:
    costs = Costs((PlanStage(trials=1, units=3),), HALVING, Cloud(price_h=3600.0))
    planned = exact(costs, 100.0, 4)
    assert planned is not None
    assert (planned.gpus, planned.time_s, planned.cost) == ((4,), 6.0, 24.0)


def test_functions_are_paid_while_they_train() -> None:
    stages = (PlanStage(trials=3, units=1),)
    cloud = Cloud(gpus_per_instance=2, price_h=3600.0, billing=Billing.FUNCTION, init_s=5.0)
    planned = Costs(stages, HALVING, cloud).predict((2,))
    assert planned.time_s == 5.0 + 2 * 8.0  # one GPU trains two of them
    assert planned.cost == 5.0 + 3 * 8.0 / 2


def test_an_instance_costs_its_minimum() -> None:
    stages = (PlanStage(trials=4, units=1), PlanStage(trials=1, units=1))
    cloud = Cloud(gpus_per_instance=1, price_h=3600.0, minimum_s=60.0)
    costs = Costs(stages, HALVING, cloud)
    # Three instances live for 8 s, one for 16 s.
    assert costs.predict((4, 1)).cost == 4 * 60.0
    assert simulate(costs, (4, 1)).cost.tolist() == [240.0]


def test_the_papers_figure() -> None:
    """Its Fig. 7: a stage that must grow, and one trial that waits for another."""
    costs = Costs((PlanStage(trials=3, units=1), PlanStage(trials=1, units=1)), HALVING, Cloud())
    assert simulate(costs, (2, 1)).time_s.tolist() == [8.0 + 8.0 + 8.0]
