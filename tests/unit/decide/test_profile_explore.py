"""Exploration: what it may cost, whom it may touch, and that it is found again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.decide.decision import decide
from bftrainer.decide.policies.milp import POLICY
from bftrainer.decide.throughput.curves import put_to_scale
from bftrainer.decide.throughput.explore import explore, teaches
from bftrainer.decide.throughput.fit import MeasuredSize, error_at
from bftrainer.model.canonical import decode, digest, encode
from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import DecisionInput, Settings
from bftrainer.model.trainer import MeasuredCosts, SizeThroughput, TrainerRecord
from milp.check import check
from milp.problem import Curve, Objective, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve
from milp.worth import allocation_value
from tests.support.snapshots import idle_nodes, record

LINE = Curve(sizes=(1, 64), samples_per_s=(1.0, 64.0))


def _problem(n_nodes: int, *trainers: ProblemTrainer) -> Problem:
    return Problem(
        nodes=tuple(ProblemNode(name=f"n{k:02d}") for k in range(n_nodes)),
        trainers=trainers,
        t_fwd_s=120.0,
        p_jmax=10,
    )


def _trainer(name: str, first: int = 0, n: int = 0, curve: Curve = LINE) -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=name,
        n_min=1,
        n_max=64,
        curve=curve,
        rescale_up_s=0.3,
        rescale_down_s=0.1,
        current=tuple(f"n{k:02d}" for k in range(first, first + n)),
    )


def _knows(*sizes: int) -> Callable[[int], float]:
    points = tuple(MeasuredSize(n, 1.0, 0.005) for n in sorted(sizes))
    return lambda size: error_at(points, size)


def test_who_grows_anyway_goes_where_it_teaches_most() -> None:
    """Eight new nodes, of which nobody may have all; every split is worth the same."""
    growing = [replace(_trainer(name, first, 4), n_max=10) for name, first in (("a", 0), ("b", 4))]
    problem = _problem(16, *growing)
    best = solve(problem)
    assert best.sizes() == {"a": 10, "b": 6}
    errors = {"a": _knows(*range(1, 11)), "b": _knows(*range(1, 8))}
    found = explore(problem, best, solve, errors, 0.02)
    check(problem, found)
    assert found.sizes() == {"a": 6, "b": 10}
    assert found.objective == pytest.approx(best.objective)


def test_who_does_not_move_is_left_alone() -> None:
    problem = _problem(12, _trainer("a", 0, 4), _trainer("b", 4, 8))
    best = solve(problem)
    assert best.sizes() == {"a": 4, "b": 8}
    errors = {"a": _knows(1), "b": _knows(1)}
    assert explore(problem, best, solve, errors, 0.5) is best


def test_no_budget_no_exploration() -> None:
    problem = _problem(16, _trainer("a", 0, 4), _trainer("b", 4, 4))
    best = solve(problem)
    assert explore(problem, best, solve, {"a": _knows(1), "b": _knows(1)}, 0.0) is best


def test_what_is_known_teaches_nothing() -> None:
    assert teaches(0.01) == 0.0
    assert 0.0 < teaches(0.1) < teaches(0.2) == teaches(0.9) == 1.0
    problem = _problem(16, _trainer("a", 0, 4), _trainer("b", 4, 4))
    best = solve(problem)
    known = _knows(*range(1, 65))
    assert explore(problem, best, solve, {"a": known, "b": known}, 0.5) is best


_EXPONENTS = st.floats(0.3, 1.05)


@given(
    st.lists(
        st.tuples(_EXPONENTS, st.sets(st.integers(1, 32), max_size=3)), min_size=1, max_size=4
    ),
    st.integers(1, 24),
    st.floats(0.0, 0.1),
)
def test_it_never_costs_more_than_the_budget(
    trainers: list[tuple[float, set[int]]], n_nodes: int, budget: float
) -> None:
    sizes = (1, 2, 4, 8, 16, 32)
    made = [
        _trainer(f"t{k}", 2 * k, 2, Curve(sizes=sizes, samples_per_s=tuple(n**e for n in sizes)))
        for k, (e, _) in enumerate(trainers)
    ]
    problem = _problem(max(n_nodes, 2 * len(made)), *made)
    best = solve(problem)
    errors = {f"t{k}": _knows(*known) for k, (_, known) in enumerate(trainers)}
    found = explore(problem, best, solve, errors, budget)
    check(problem, found)
    assert allocation_value(problem, found.assignment) >= (1.0 - budget) * best.objective * (
        1 - 1e-9
    )
    before = {t.trainer_id: len(t.current) for t in made}
    moved = {t for t, n in before.items() if found.sizes().get(t, 0) != n}
    assert moved <= {t for t, n in before.items() if best.sizes().get(t, 0) != n}


# ---- in decisions --------------------------------------------------------------------


def _given(trainers: Sequence[TrainerRecord], settings: Settings) -> DecisionInput:
    from bftrainer.model.decision import Memory

    return DecisionInput(
        now_s=1000.0,
        snapshot=Snapshot(taken_at_s=1000.0, nodes=idle_nodes(20), jobs=()),
        is_new_snapshot=True,
        pilots=(),
        trainers=tuple(trainers),
        settings=settings,
        memory=Memory(),
    )


def _measured(name: str, *sizes: int, each: float = 100.0) -> TrainerRecord:
    told = tuple((n, each * n) for n in sizes)
    known = tuple(
        SizeThroughput(
            size=n, count=9.0, mean_samples_per_s=rate, m2=1.0, told_count=9.0, told_error=0.004
        )
        for n, rate in told
    )
    return record(name, n_max=20, costs=MeasuredCosts(samples_per_s_by_size=told, throughput=known))


SETTINGS = Settings(reserve_nodes_per_type=0, explore_budget=0.05)


def test_a_decision_that_explores_is_taken_again_from_the_journal() -> None:
    given = _given([_measured("t1", 1, 10), _measured("t2", 1, 2, 3, 10)], SETTINGS)
    plan = decide(given, POLICY)
    again = decide(decode(encode(given), DecisionInput), POLICY)
    assert digest(again) == digest(plan)
    without = decide(replace(given, settings=replace(SETTINGS, explore_budget=0.0)), POLICY)
    assert plan.allocation is not None
    assert without.allocation is not None
    assert plan.allocation.sizes() != without.allocation.sizes()


@pytest.mark.parametrize(("is_bold", "factor"), [(True, 300.0), (False, 173.2)])
def test_who_was_never_measured_is_compared_on_the_scale_of_the_others(
    *, is_bold: bool, factor: float
) -> None:
    records = (_measured("a", 1, each=100.0), _measured("b", 1, each=300.0), record("c"))
    lines = [
        replace(_trainer(name), curve=Curve(sizes=(1, 2), samples_per_s=(each, 1.75 * each)))
        for name, each in (("a", 100.0), ("b", 300.0), ("c", 1.0))
    ]
    put = put_to_scale(_problem(4, *lines), records, is_bold=is_bold)
    assert put.trainers[:2] == tuple(lines[:2])
    assert put.trainers[2].curve.samples_per_s == pytest.approx((factor, 1.75 * factor), rel=1e-3)


def test_under_throughput_a_trainer_nobody_knows_gets_nodes() -> None:
    settings = replace(SETTINGS, objective=Objective.THROUGHPUT)
    plan = decide(_given([_measured("t1", 1, 4, 16), record("t2", n_max=20)], settings), POLICY)
    assert plan.allocation is not None
    assert plan.allocation.sizes().get("t2", 0) > 0
