"""The exact plan against all plans, the closed form against the graph, planners side by side."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from bftrainer.lab.papers.rubberband.placement import place, replaced
from bftrainer.study.plan import exact as module
from bftrainer.study.plan.document import PlanRequest, plan_study
from bftrainer.study.plan.exact import exact, fastest
from bftrainer.study.plan.problem import (
    Cloud,
    PlanStage,
    RungStage,
    ScalingProfile,
    experiment_of,
    rung_stages,
    sha_stages,
)
from bftrainer.study.plan.published import Algorithm2Reading, greedy, static
from bftrainer.study.plan.stage_cost import Costs, Planned, simulate
from bftrainer.study.rungs import Hyperband
from tests.support.planning import brute_force_error, compared, drawn_costs, graph_error, large


def test_the_closed_form_is_the_critical_path() -> None:
    assert max(graph_error(case) for case in range(300)) <= 1e-9


@pytest.mark.parametrize("cases", [range(50), pytest.param(range(50, 210), marks=pytest.mark.long)])
def test_the_exact_plan_is_the_best_of_all(cases: range) -> None:
    errors = [brute_force_error(case) for case in cases]
    known = [error for error in errors if error is not None]
    assert len(known) >= 0.95 * len(cases)
    assert max(known) <= 1e-9


def test_nobody_plans_cheaper() -> None:
    cases = [compared(case) for case in range(12)]
    for case in cases:
        assert case.bound <= case.optimum
        assert min(case.of.values()) >= case.optimum * (1 - 1e-9)
    assert np.mean([case.of["literal"] / case.optimum for case in cases]) > 1.05
    assert np.mean([case.of["repaired"] / case.optimum for case in cases]) < 1.02


@pytest.mark.parametrize("start_s", [0.0, pytest.param(10.0, marks=pytest.mark.long)])
def test_the_largest_study_of_the_paper(start_s: float) -> None:
    found = large(start_s, 120, 0.85)
    assert found.gap <= 0.04
    assert 0.0 <= found.repaired <= 0.05


def test_with_too_many_labels_the_bound_is_below_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(
        sha_stages(64, 4, 508, 2),
        ScalingProfile(gpus=(1, 2, 4, 8), unit_s=(4.0, 2.2, 1.3, 0.9)),
        Cloud(gpus_per_instance=4, price_h=12.24, init_s=15.0, scale_s=15.0),
    )
    deadline_s = 1.3 * fastest(costs, 256).time_s
    best = exact(costs, deadline_s, 256)
    monkeypatch.setattr(module, "MOST_LABELS", 10)
    rough = exact(costs, deadline_s, 256)
    assert best is not None
    assert rough is not None
    assert rough.bound is not None
    assert best.bound == pytest.approx(best.cost)
    assert rough.bound <= best.cost * (1 + 1e-9) <= rough.cost * (1 + 2e-9)
    assert rough.cost <= 1.04 * rough.bound
    assert rough.time_s <= deadline_s


def test_the_fastest_plan_is_the_limit() -> None:
    for case in range(8):
        costs = drawn_costs(case)
        quickest = fastest(costs, 16).time_s
        found = exact(costs, quickest + 1e-9, 16)
        assert found is not None
        assert found.time_s == pytest.approx(quickest)
        assert exact(costs, 0.999 * quickest, 16) is None
        assert static(costs, 0.999 * quickest, 16) is None
        assert greedy(costs, 0.999 * quickest, 16, Algorithm2Reading.LITERAL) is None


@pytest.mark.parametrize("cases", [range(8), pytest.param(range(8, 30), marks=pytest.mark.long)])
def test_with_a_minimum_charge_nobody_plans_cheaper_either(cases: range) -> None:
    """Labels do not know it: the plan may be above the optimum, the bound is below."""
    optimal = 0
    for case in cases:
        small = tuple(PlanStage(trials=4 // (1 + i), units=2 + 3 * i) for i in range(3))
        costs = drawn_costs(case, small)
        cloud = Cloud(price_h=10.0, minimum_s=60.0, init_s=float(case % 2) * 7.0)
        priced = Costs(small, replace(costs.scaling, n_min=1, n_max=None), cloud)
        deadline_s = 1.6 * fastest(priced, 8).time_s
        found = plan_study(request(priced, deadline_s, 8))
        assert found is not None
        plans = [priced.predict(one) for one in product(range(1, 9), repeat=3)]
        best = min(simulated(priced, p) for p in plans if p.time_s <= deadline_s + 1e-9)
        assert found.bound <= best * (1 + 1e-6)
        assert best * (1 - 1e-6) <= found.cost.mean <= 1.1 * best
        assert all(found.cost.mean <= r.cost * (1 + 1e-6) for r in found.rivals.values() if r)
        optimal += found.cost.mean <= best * (1 + 1e-6)
    assert optimal >= 0.6 * len(cases)


def simulated(costs: Costs, plan: Planned) -> float:
    return float(simulate(costs, plan.gpus).cost.mean())


def request(costs: Costs, deadline_s: float, most: int) -> PlanRequest:
    """What ``study plan`` would ask for."""
    stages = tuple(
        RungStage(bracket=0, budget=number, trials=one.trials, units=one.units)
        for number, one in enumerate(costs.experiment)
    )
    return PlanRequest(
        study="drawn",
        unit="epochs",
        rule={},
        stages=stages,
        deadline_s=deadline_s,
        most=most,
        scaling=costs.scaling,
        cloud=costs.cloud,
        samples=costs.samples,
    )


@pytest.mark.long
@pytest.mark.parametrize("over_fastest", [1.05, pytest.param(1.3, marks=pytest.mark.long)])
def test_many_stages_are_planned_close_to_the_optimum(over_fastest: float) -> None:
    """Brackets of Hyperband come one after another: 28 stages here."""
    stages = rung_stages(Hyperband(least=1, most=64, eta=2))
    assert len(stages) == 28
    scaling = ScalingProfile(
        gpus=(1, 2, 4, 8, 16), unit_s=(103.0, 55.0, 30.0, 20.0, 15.0), spread=0.05, n_max=16
    )
    cloud = Cloud(gpus_per_instance=4, price_h=12.24, init_s=15.0, scale_s=15.0)
    costs = Costs(experiment_of(stages), scaling, cloud)
    deadline_s = over_fastest * fastest(costs, 256).time_s
    found = exact(costs, deadline_s, 256)
    rival = greedy(costs, deadline_s, 256, Algorithm2Reading.REPAIRED)
    assert found is not None
    assert rival is not None
    assert found.bound is not None
    assert found.bound <= found.cost <= 1.002 * found.bound
    assert found.cost <= rival.cost
    assert found.time_s <= deadline_s


# ---- placement -------------------------------------------------------------------------


def test_placements_are_whole_and_stay() -> None:
    placed = replaced(400)
    assert placed.rounds == 1600
    assert (placed.wrong, placed.oversubscribed, placed.split) == (0, 0, 0)
    assert placed.moved <= 0.05 * placed.unchanged


def test_small_trials_make_room_for_a_large_one() -> None:
    found = place({"a": 1, "b": 1, "c": 4}, {"a": (0,), "b": (1,)}, 2, 4)
    assert found is not None
    assert len(set(found["c"])) == 1
    assert found["a"] == found["b"] != (found["c"][0],)


def test_trials_that_do_not_fit_are_refused() -> None:
    assert place({"a": 5}, {}, 1, 4) is None
    assert place({"a": 3, "b": 3}, {}, 2, 4) == {"a": (0, 0, 0), "b": (1, 1, 1)}
    assert place({}, {"a": (0,)}, 1, 4) == {}
