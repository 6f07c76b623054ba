"""The policy ibm-dp: sizes are the optimum of eq. 3, and who may shrink and enter when."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.batch.batch_system import OptionError
from bftrainer.decide.policies.base import Context, Decided, Standing, load_policy, options_of
from bftrainer.decide.policies.convolution import Floats, best_sizes
from bftrainer.decide.policy_answer import ask
from milp.problem import Curve, Objective, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve
from tests.conformance.policy import PolicyConformance
from tests.support.examples import examples
from tests.support.policies import problem_of, trainer
from tests.support.problems import problems, sizes_of

NEW = Standing(submitted_s=0.0, attained_node_s=0.0, done_samples=0, left_samples=None)
POLICY = load_policy("ibm-dp")
# Tenths make ties that float sums miss by a rounding.
FACTORS = st.integers(0, 60).map(lambda tenths: 0.1 * tenths)
ROWS = st.lists(FACTORS, min_size=1, max_size=6)


class TestConformance(PolicyConformance):
    name = "ibm-dp"


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        problems(max_nodes=9, max_trainers=4, classes="abc", mixes=True),
        min_size=2,
        max_size=4,
    ),
    st.booleans(),
    st.sampled_from([0.0, 15.0, 600.0]),
)
def test_every_answer_of_a_row_is_valid(row: list[Problem], drop: bool, period_s: float) -> None:
    """With trainers, nodes and classes of any kind, whatever was decided before."""
    before: Decided | None = None
    for turn, problem in enumerate(row):
        before = asked(problem, 10.0 * turn, before, drop=drop, period_s=period_s)
        running = frozenset(before.allocation.sizes())
        assert running <= frozenset(before.state["entered"])
        assert running.isdisjoint(before.dropped)


def context(now_s: float = 0.0, state: Any = None, **options: Any) -> Context:
    return Context(
        now_s=now_s,
        options=options_of(POLICY, options),
        state=state,
        trainers={f"t{j}": NEW for j in range(6)},
    )


def asked(
    problem: Problem, now_s: float = 0.0, before: Decided | None = None, **options: Any
) -> Decided:
    state = None if before is None else before.state
    return ask(POLICY, problem, context(now_s, state, **options))


def bent(name: str, *current: str, n_min: int = 1) -> ProblemTrainer:
    """A trainer that gains ever less."""
    curve = Curve(sizes=(1, 2, 4, 8), samples_per_s=(1.0, 1.8, 2.9, 4.0))
    return replace(trainer(name, *current, n_min=n_min, n_max=8), curve=curve)


# ---- sizes ------------------------------------------------------------------------------------


def by_trying(nodes: int, least: Sequence[int], worth: Sequence[Floats]) -> float:
    """The greatest total of all combinations of sizes that fit."""
    choices = [range(first, first + len(row)) for first, row in zip(least, worth, strict=True)]
    return max(
        sum(float(row[n - first]) for n, first, row in zip(sizes, least, worth, strict=True))
        for sizes in itertools.product(*choices)
        if sum(sizes) <= nodes
    )


@settings(max_examples=examples(1000), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), ROWS), max_size=4),
    st.integers(0, 8),
)
def test_sizes_are_those_of_trying_all(jobs: list[tuple[int, list[float]]], spare: int) -> None:
    least = [first for first, _ in jobs]
    worth = [np.array(row) for _, row in jobs]
    nodes = sum(least) + spare
    sizes = best_sizes(nodes, least, worth)
    assert sizes is not None
    assert sum(sizes) <= nodes
    reached = sum(row[n - k] for n, k, row in zip(sizes, least, worth, strict=True))
    assert reached == pytest.approx(by_trying(nodes, least, worth), abs=1e-9)
    if least and sum(least):
        assert best_sizes(sum(least) - 1, least, worth) is None


def test_more_sizes_than_are_tried_at_once() -> None:
    rng = np.random.default_rng(4)
    worth = [rng.random(n) for n in (200, 130, 1, 65)]
    sizes = best_sizes(304, [1, 1, 1, 1], worth)
    assert sizes is not None
    assert sizes == [1 + int(row.argmax()) for row in worth]  # enough nodes for each one's best


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5), st.integers(0, 12))
def test_the_sum_of_factors_is_that_of_milp(rates: list[list[float]], spare: int) -> None:
    """Without rescale costs and with everybody made to run, as the paper demands."""
    curves = [
        Curve(sizes=tuple(range(1, len(row) + 1)), samples_per_s=(row[0] + 0.5, *row[1:]))
        for row in rates
    ]
    runs = 1000.0  # worth of running at all
    problem = Problem(
        nodes=tuple(ProblemNode(name=f"n{i}") for i in range(len(rates) + spare)),
        trainers=tuple(
            ProblemTrainer(
                trainer_id=f"t{j}", n_min=1, n_max=len(curve.sizes), curve=curve,
                rescale_up_s=0.0, rescale_down_s=0.0,
                utility=Curve(
                    sizes=curve.sizes,
                    samples_per_s=tuple(
                        runs + r / curve.samples_per_s[0] for r in curve.samples_per_s
                    ),
                ),
            )
            for j, curve in enumerate(curves, start=1)
        ),
        t_fwd_s=1.0,
        p_jmax=len(rates),
        objective=Objective.UTILITY,
    )  # fmt: skip
    ours = asked(problem).allocation
    assert len(ours.sizes()) == len(rates)
    assert ours.objective == pytest.approx(solve(problem).objective, abs=1e-6)


def test_the_hand_computed_row() -> None:
    """1.9 + 1 + 3 = 5.9 is the greatest sum of O(n) / O(1) on six nodes."""
    rates = ((10.0, 19.0, 26.0, 31.0), (10.0, 16.0, 19.0, 20.0), (3.0, 6.0, 9.0))
    trainers = [
        replace(
            trainer(f"t{j}", n_max=len(row)),
            curve=Curve(sizes=tuple(range(1, len(row) + 1)), samples_per_s=row),
        )
        for j, row in enumerate(rates, start=1)
    ]
    problem = problem_of(6, *trainers)
    assert sizes_of(problem, asked(problem).allocation) == (2, 1, 3)


def test_of_equal_answers_nobody_rescales() -> None:
    problem = problem_of(6, trainer("t1", "n00"), trainer("t2", "n01", "n02", "n03", "n04", "n05"))
    assert asked(problem).allocation.sizes() == {"t1": 1, "t2": 5}


# ---- entering ---------------------------------------------------------------------------------


def test_whoever_does_not_fit_is_passed_over_and_waits() -> None:
    problem = problem_of(5, trainer("t1", n_min=3), trainer("t2", n_min=4), trainer("t3"))
    found = asked(problem)
    assert found.allocation.sizes().keys() == {"t1", "t3"}
    assert (found.order, found.dropped) == (("t1", "t3"), {})
    assert found.state["entered"] == ["t1", "t3"]


def test_a_place_that_the_first_cannot_use_is_the_next_one_s() -> None:
    problem = replace(problem_of(4, trainer("t1", n_min=9), bent("t2"), bent("t3")), p_jmax=1)
    assert asked(problem).allocation.sizes() == {"t2": 4}


def test_whoever_does_not_fit_is_dropped_if_so_chosen() -> None:
    problem = problem_of(5, trainer("t1", n_min=3), trainer("t2", n_min=4), trainer("t3"))
    dropped = asked(problem, drop=True).dropped
    assert dropped.keys() == {"t2"}
    assert "no 4 nodes" in dropped["t2"]


def test_between_rounds_nobody_is_dropped() -> None:
    """It might enter in the next round, when the others may shrink."""
    first = asked(problem_of(4, bent("t1")), drop=True)
    held = bent("t1", "n00", "n01", "n02", "n03")
    between = asked(problem_of(4, held, bent("t2")), 10.0, first, drop=True)
    assert between.dropped == {}
    assert between.wake_at_s == 600.0
    later = asked(problem_of(4, held, bent("t2")), 600.0, between, drop=True)
    assert later.allocation.sizes() == {"t1": 2, "t2": 2}


def test_who_has_entered_is_never_dropped() -> None:
    first = asked(problem_of(2, bent("t1"), bent("t2")), drop=True)
    found = asked(problem_of(1, bent("t1"), bent("t2")), 1000.0, first, drop=True)
    assert found.allocation.sizes() == {"t1": 1}
    assert found.dropped == {}
    assert found.state["entered"] == ["t1", "t2"]


# ---- rounds -----------------------------------------------------------------------------------


def test_free_nodes_are_handed_out_between_rounds_and_nobody_shrinks() -> None:
    first = asked(problem_of(3, bent("t1")))
    held = bent("t1", "n00", "n01", "n02")
    between = asked(problem_of(6, held, bent("t2")), 10.0, first)
    assert between.allocation.sizes() == {"t1": 3, "t2": 3}
    waits = asked(problem_of(3, held, bent("t2")), 20.0, first)
    assert waits.allocation.sizes() == {"t1": 3}
    assert waits.wake_at_s == 600.0


def test_without_a_period_every_decision_is_a_round() -> None:
    first = asked(problem_of(4, bent("t1")), period_s=0.0)
    held = bent("t1", "n00", "n01", "n02", "n03")
    found = asked(problem_of(4, held, bent("t2")), 1.0, first, period_s=0.0)
    assert found.allocation.sizes() == {"t1": 2, "t2": 2}
    assert found.wake_at_s is None


def test_after_a_loss_the_survivors_go_on() -> None:
    first = asked(problem_of(6, bent("t1"), bent("t2")))
    lost = problem_of(
        4, bent("t1", "n00", "n01", "n02"), replace(bent("t2"), current=("n03", "n08", "n09"))
    )
    assert asked(lost, 10.0, first).allocation.sizes() == {"t1": 3, "t2": 1}


def test_others_shrink_before_one_has_to_stop() -> None:
    first = asked(problem_of(6, bent("t1", n_min=2), bent("t2")))
    lost = problem_of(
        4, bent("t1", "n00", n_min=2), replace(bent("t2"), current=("n01", "n02", "n03"))
    )
    found = asked(lost, 10.0, first)
    assert found.allocation.sizes() == {"t1": 2, "t2": 2}
    assert found.state["round_s"] == 10.0


def test_the_last_to_enter_stops_first_and_comes_back_before_new_ones() -> None:
    first = asked(problem_of(4, bent("t2", n_min=2), bent("t1", n_min=2)))
    lost = problem_of(3, bent("t1", "n00", n_min=2), bent("t2", "n01", "n02", n_min=2))
    found = asked(lost, 10.0, first)
    assert found.allocation.sizes() == {"t2": 3}
    back = problem_of(
        4, bent("t3", n_min=2), bent("t1", n_min=2), bent("t2", "n01", "n02", n_min=2)
    )
    assert asked(back, 20.0, found).allocation.sizes() == {"t1": 2, "t2": 2}


def test_each_class_of_nodes_is_shared_by_itself() -> None:
    problem = problem_of(6, bent("t1"), bent("t2"), replace(bent("t3"), eligible=("b",)))
    nodes = tuple(replace(n, eligibility="ab"[i >= 4]) for i, n in enumerate(problem.nodes))
    found = asked(replace(problem, nodes=nodes)).allocation
    assert found.sizes() == {"t1": 2, "t2": 2, "t3": 2}


def test_who_is_left_out_of_a_problem_keeps_its_place() -> None:
    """Nodes of a trainer that has just been rescaled may be fixed for a while."""
    first = asked(problem_of(4, bent("t1", n_min=2), bent("t2", n_min=2)))
    without = asked(problem_of(2, bent("t2", n_min=2)), 10.0, first)
    assert without.state["entered"] == ["t1", "t2"]


@pytest.mark.parametrize("period_s", [-1.0, float("nan")])
def test_a_period_that_is_none_is_refused(period_s: float) -> None:
    with pytest.raises(OptionError, match="BFT-3053"):
        options_of(POLICY, {"period_s": period_s})
