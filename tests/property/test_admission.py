"""Whatever is accepted leaves an innocent trainer what it would have without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bftrainer.decide.isolation import unfit
from bftrainer.fleet.trainers.costs import blend, learn_leaving, learn_throughput
from bftrainer.model import canonical
from bftrainer.model.decision import Settings
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import MeasuredCosts, TrainerSpec
from bftrainer.site.policy.model import SiteObjective
from milp.problem import Curve, Objective
from tests.support.examples import examples
from tests.support.joint import INNOCENT, NODES, decided, harm_of
from tests.support.snapshots import record

OBJECTIVES = [Objective(one) for one in SiteObjective]

_extremes = st.sampled_from(
    [1e-320, 1e-20, 1e-9, 1e-6, 1e-3, 1.0, 100.0, 1e6, 1e9, 1e12, 1e15, 1e16, 1e300]
)
_rates = _extremes | st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.0, 1e9)
_sizes = st.sampled_from([1, 2, 3, 8, 64, 10**6, 2**40, 2**63, 10**400]) | st.integers(-1, 20)


@st.composite
def _curves(draw: st.DrawFn) -> Curve:
    sizes = sorted(draw(st.sets(_sizes, max_size=5)))
    rates = draw(st.lists(_rates, min_size=len(sizes), max_size=len(sizes)))
    return Curve(sizes=tuple(sizes), samples_per_s=tuple(rates))


@st.composite
def _believable(draw: st.DrawFn) -> Curve:
    """Draw a curve at the very edge of what is accepted."""
    sizes = sorted(draw(st.sets(st.sampled_from([1, 2, 3, 8, 64, 10**6]), min_size=1)))
    first = draw(st.sampled_from([1e-6, 1.0, 1e3, 1e9]))
    shapes = [st.sampled_from([0.0, first, first * n, 10.0 * first * n]) for n in sizes[1:]]
    rates = [first * sizes[0], *map(draw, shapes)]
    return Curve(sizes=tuple(sizes), samples_per_s=tuple(min(rate, 1e9) for rate in rates))


_specs = st.fixed_dictionaries(
    {"n_min": st.sampled_from([1, 2, 5, 50]), "n_max": st.sampled_from([1, 4, 9, 50, 10**6])},
    optional={
        "curve": _curves() | _believable(),
        "utility": _curves(),
        "weight": _extremes | st.floats(),
        "samples": _sizes,
        "epochs": _sizes,
        "workers_per_node": _sizes,
        "max_failures": _sizes,
        "checkpoint_interval_s": _rates,
    },
)


@settings(max_examples=examples(300), deadline=None)
@given(_specs, st.sampled_from(OBJECTIVES), st.sampled_from([0.0, 0.02]))
@example({"curve": Curve(sizes=(1,), samples_per_s=(1e-20,))}, OBJECTIVES[0], 0.0)
@example({"curve": Curve(sizes=(2**40,), samples_per_s=(1.0,))}, OBJECTIVES[0], 0.0)
@example({"weight": 1e15}, Objective.WEIGHTED, 0.0)
def test_an_innocent_trainer_has_what_it_would_have_beside_a_plain_one(
    fields: dict[str, Any], objective: Objective, explore_budget: float
) -> None:
    spec = TrainerSpec(name="any", user="eve", script="/s.py", **fields)
    site = Settings(
        reserve_nodes_per_type=0, objective=objective, explore_budget=explore_budget, p_jmax=2
    )
    try:
        harm = harm_of(spec, site)
    except UsageError:
        return
    assert not harm


_reports = st.lists(
    st.tuples(st.integers(1, 64), _rates | st.integers(0, 10**400), _rates), max_size=12
)


@settings(max_examples=examples(300), deadline=None)
@given(_reports, st.none() | _believable(), st.sampled_from([0.0, 0.02]))
def test_whatever_workers_report_of_a_trainer_decisions_can_be_taken_with_it(
    reports: list[tuple[int, float, float]], declared: Curve | None, explore_budget: float
) -> None:
    costs = MeasuredCosts()
    for at_s, (size, rate, pause_s) in enumerate(reports):
        costs = learn_throughput(costs, size, rate, float(at_s), declared)
        costs = learn_leaving(costs, size)
        costs = replace(costs, rescale_up_s=blend(costs.rescale_up_s, pause_s))
    bad, site = record("t1", costs=costs), Settings(explore_budget=explore_budget)
    bad = replace(bad, spec=replace(bad.spec, curve=declared))
    canonical.encode(bad)  # the journal takes it
    assert unfit(bad, site) == ""
    plan = decided(bad, record("t2", n_max=INNOCENT), settings=site)
    assert (plan.trouble, plan.memory.left_out) == ("", {})


def test_there_is_room_for_both_in_half_of_the_cases() -> None:
    assert 4 + INNOCENT <= NODES < 50
    with pytest.raises(UsageError, match="BFT-1015"):
        harm_of(
            TrainerSpec(
                name="n", user="u", script="/s", curve=Curve(sizes=(1,), samples_per_s=(1e16,))
            ),
            Settings(),
        )
