"""The exact plan against all plans, the closed form against the graph, planners side by side."""

from __future__ import annotations

import numpy as np
import pytest
from _bench.planning import brute_force_error, compared, drawn_costs, graph_error, large
from _bench.replacing import replaced

from bftrainer.study.plan import exact as module
from bftrainer.study.plan.cloud import Cloud
from bftrainer.study.plan.exact import exact, fastest
from bftrainer.study.plan.experiment import sha_stages
from bftrainer.study.plan.greedy import Reading, greedy
from bftrainer.study.plan.placing import place
from bftrainer.study.plan.scaling import Scaling
from bftrainer.study.plan.stage_cost import Costs
from bftrainer.study.plan.static import static


def test_the_closed_form_is_the_critical_path() -> None:
    assert max(graph_error(case) for case in range(1000)) <= 1e-9


def test_the_exact_plan_is_the_best_of_all() -> None:
    errors = [brute_force_error(case) for case in range(210)]
    known = [error for error in errors if error is not None]
    assert len(known) >= 200
    assert max(known) <= 1e-9


def test_nobody_plans_cheaper() -> None:
    cases = [compared(case) for case in range(12)]
    for case in cases:
        assert case.bound <= case.optimum
        assert min(case.of.values()) >= case.optimum * (1 - 1e-9)
    assert np.mean([case.of["literal"] / case.optimum for case in cases]) > 1.05
    assert np.mean([case.of["repaired"] / case.optimum for case in cases]) < 1.02


@pytest.mark.parametrize("start_s", [0.0, 10.0])
def test_the_largest_study_of_the_paper(start_s: float) -> None:
    found = large(start_s, 120, 0.85)
    assert found.gap <= 0.04
    assert 0.0 <= found.repaired <= 0.05


def test_with_too_many_labels_the_bound_is_below_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(
        sha_stages(64, 4, 508, 2),
        Scaling(gpus=(1, 2, 4, 8), unit_s=(4.0, 2.2, 1.3, 0.9)),
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
    for case in range(20):
        costs = drawn_costs(case)
        if costs.cloud.init_spread:  # more instances take longer to come
            continue
        quickest = fastest(costs, 16).time_s
        found = exact(costs, quickest + 1e-9, 16)
        assert found is not None
        assert found.time_s == pytest.approx(quickest)
        assert exact(costs, 0.999 * quickest, 16) is None
        assert static(costs, 0.999 * quickest, 16) is None
        assert greedy(costs, 0.999 * quickest, 16, Reading.LITERAL) is None


def test_with_a_minimum_charge_nobody_plans_cheaper_either() -> None:
    for case in range(10):
        costs = drawn_costs(case)
        priced = Costs(costs.experiment, costs.scaling, Cloud(price_h=10.0, minimum_s=60.0))
        deadline_s = 2.0 * fastest(priced, 16).time_s
        found = exact(priced, deadline_s, 48)
        rival = greedy(priced, deadline_s, 16, Reading.REPAIRED)
        assert found is not None
        assert rival is not None
        assert found.bound is not None
        assert found.bound <= found.cost <= rival.cost


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
