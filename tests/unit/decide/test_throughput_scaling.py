"""Or et al.'s policies: who grows, who waits, and exact sizes beside climbing."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.batch.batch_system import OptionError
from bftrainer.decide.policies.base import Context, Decided, Standing, load_policy, options_of
from bftrainer.decide.policies.utility_exact import best_sizes
from bftrainer.decide.policy_answer import ask
from bftrainer.decide.throughput.fit import MeasuredSize
from bftrainer.lab.papers.elasticity.simulator import JOBS
from milp.problem import Curve, Problem, ProblemTrainer
from tests.conformance.policy import PolicyConformance
from tests.support.policies import problem_of, trainer

NEW = Standing(submitted_s=0.0, attained_node_s=0.0, done_samples=0.0, left_samples=None)


def measured(*rates: tuple[int, float], **about: Any) -> Standing:
    points = tuple(MeasuredSize(size, rate, 0.0) for size, rate in rates)
    return replace(NEW, points=points, **about)


def decided(
    name: str, problem: Problem, standings: dict[str, Standing] | None = None, **options: Any
) -> Decided:
    policy = load_policy(name)
    known = {t.trainer_id: NEW for t in problem.trainers} | (standings or {})
    given = json.loads(json.dumps(options))  # lists, as in a site's policy file
    context = Context(now_s=1000.0, options=options_of(policy, given), trainers=known)
    return ask(policy, problem, context)


def nodes(first: int, count: int) -> tuple[str, ...]:
    return tuple(f"n{i:02}" for i in range(first, first + count))


def with_curve(one: ProblemTrainer, *rates: tuple[int, float]) -> ProblemTrainer:
    sizes, values = zip(*rates, strict=True)
    return replace(one, curve=Curve(sizes=sizes, samples_per_s=values))


class TestThroughputScaling(PolicyConformance):
    name = "throughput-scaling"

    def test_a_measured_trainer_makes_one_move_and_is_looked_at_again(self) -> None:
        problem = problem_of(12, trainer("t1", *nodes(0, 4)))
        found = decided(self.name, problem, {"t1": measured((4, 4.0))}, step=2)
        assert found.allocation.sizes() == {"t1": 6}
        assert found.wake_at_s == 1060.0
        problem = problem_of(12, trainer("t1", *nodes(0, 6)))
        found = decided(self.name, problem, {"t1": measured((4, 4.0))}, step=2)
        assert found.allocation.sizes() == {"t1": 6}  # not measured yet

    def test_gives_back_what_earns_nothing(self) -> None:
        problem = problem_of(12, trainer("t1", *nodes(0, 6)))
        points = measured((2, 3.0), (4, 4.0), (6, 4.05))
        assert decided(self.name, problem, {"t1": points}, step=2).allocation.sizes() == {"t1": 4}

    def test_a_trainer_never_measured_is_sized_by_its_curve(self) -> None:
        one = with_curve(trainer("t1"), (1, 1.0), (5, 5.0), (16, 5.5))
        found = decided(self.name, problem_of(12, one))
        assert found.allocation.sizes() == {"t1": 5}
        assert found.wake_at_s is None  # nothing is going to be measured

    def test_trainers_compete_for_what_is_free(self) -> None:
        """t1 has s = 1 at any size, t2 less; the smallest is first unless told otherwise."""
        small = with_curve(trainer("t2", "n05"), (1, 1.0), (16, 8.5))
        problem = problem_of(10, trainer("t1", *nodes(0, 5)), small)
        assert decided(self.name, problem).allocation.sizes() == {"t1": 5, "t2": 5}
        found = decided(self.name, problem, order="efficiency")
        assert found.allocation.sizes() == {"t1": 9, "t2": 1}

    def test_who_waits_starts_before_others_grow(self) -> None:
        problem = problem_of(8, trainer("t1", *nodes(0, 5)), trainer("t2", n_min=3))
        assert decided(self.name, problem).allocation.sizes() == {"t1": 5, "t2": 3}

    @pytest.mark.parametrize(
        "wrong", [{"threshold": 1.5}, {"step": 0}, {"standard_errors": -1.0}, {"measure_s": 0.0}]
    )
    def test_refuses_options_out_of_range(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(OptionError, match=r"BFT-3053.*must be"):
            decided(self.name, problem_of(1, trainer("t1")), **wrong)


# ---- utility ------------------------------------------------------------------------------------

JOB = JOBS["cpus"]
WORK = replace(NEW, submitted_s=1000.0, left_samples=JOB.samples)
STEP_AT_60_MIN = ((3600.0, 100.0), (3600.001, 0.0))
BRIDGED = ((3600.0, 100.0), (JOB.samples / JOB.rate(4), 0.0))


def on_60_nodes(*current: str) -> Problem:
    """The job of section 7.3, its curve known."""
    rates = [(k, JOB.rate(k)) for k in range(1, 61)]
    return problem_of(60, with_curve(trainer("t1", *current, n_max=60), *rates))


def dollars(size: int) -> float:
    """What the size earns if 60 min are worth 100 $ and a worker costs 1 $/h."""
    hours = JOB.samples / JOB.rate(size) / 3600.0
    return (100.0 if hours <= 1.0 else 0.0) - hours * size


class TestUtility(PolicyConformance):
    name = "utility"

    def test_climbing_misses_the_target_that_the_bridge_leads_to(self) -> None:
        found = decided(
            self.name, on_60_nodes(*nodes(0, 4)), {"t1": WORK},
            utility=BRIDGED, price_per_node_h=1.0, step=4,
        )  # fmt: skip
        assert found.allocation.sizes() == {"t1": 28}
        assert dollars(28) == pytest.approx(-31.1, abs=0.1)

    def test_a_utility_that_is_flat_at_first_moves_nobody(self) -> None:
        problem = on_60_nodes(*nodes(0, 4))
        options: dict[str, Any] = {"utility": STEP_AT_60_MIN, "price_per_node_h": 1.0, "step": 4}
        sizes = decided(self.name, problem, {"t1": WORK}, **options).allocation.sizes()
        assert sizes["t1"] <= 4

    def test_who_has_no_goal_grows_after_the_others(self) -> None:
        problem = problem_of(9, trainer("t1", "n00"), trainer("t2", "n01"))
        goal = replace(NEW, left_samples=100.0, submitted_s=1000.0)
        utility = ((0.0, 100.0), (100.0, 0.0))
        for standings in ({"t2": goal}, {"t1": replace(goal, has_rates=False), "t2": goal}):
            found = decided(self.name, problem, standings, utility=utility)
            assert found.allocation.sizes() == {"t1": 1, "t2": 8}

    @pytest.mark.parametrize(
        "wrong",
        [
            {"utility": []},
            {"utility": [[0.0, 1.0], [0.0, 0.0]]},
            {"utility": [[0.0, 1.0], [9.0, 2.0]]},
            {"price_per_node_h": -1.0},
            {"threshold": -0.1},
        ],
    )
    def test_refuses_options_out_of_range(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(OptionError, match=r"BFT-3053.*(must|needs)"):
            decided(self.name, problem_of(1, trainer("t1")), **wrong)


class TestUtilityExact(PolicyConformance):
    name = "utility-exact"

    def test_finds_what_climbing_misses(self) -> None:
        found = decided(
            self.name, on_60_nodes(*nodes(0, 36)), {"t1": WORK},
            utility=STEP_AT_60_MIN, price_per_node_h=1.0,
        )  # fmt: skip
        assert found.allocation.sizes() == {"t1": 36}
        assert dollars(36) == pytest.approx(64.3, abs=0.1)
        assert dollars(36) == max(dollars(k) for k in range(1, 61))

    def test_a_pause_is_part_of_the_completion_time(self) -> None:
        """A target that would be missed by the pause alone is not worth a rescale."""
        goal = replace(NEW, submitted_s=1000.0, left_samples=160.0)  # 20 s on 8 nodes, 40 s on 4
        utility = [[21.5, 50], [30, 10], [40, 10], [50, 0]]
        options: dict[str, Any] = {"utility": utility, "price_per_node_h": 0.0}
        problem = problem_of(8, trainer("t1", *nodes(0, 4), n_max=8))
        assert decided(self.name, problem, {"t1": goal}, **options).allocation.sizes() == {"t1": 8}
        slow = replace(problem.trainers[0], rescale_up_s=15.0)
        problem = replace(problem, trainers=(slow,))
        assert decided(self.name, problem, {"t1": goal}, **options).allocation.sizes() == {"t1": 4}

    def test_who_is_worth_nothing_is_parked(self) -> None:
        goal = replace(NEW, submitted_s=1000.0, left_samples=1e9)
        found = decided(self.name, problem_of(4, trainer("t1", "n00")), {"t1": goal})
        assert found.allocation.sizes() == {}

    def test_who_has_no_goal_gets_what_is_left(self) -> None:
        problem = problem_of(9, trainer("t1", *nodes(0, 6)), trainer("t2", n_max=5))
        goal = replace(NEW, submitted_s=1000.0, left_samples=1000.0)
        found = decided(self.name, problem, {"t2": goal}, utility=((0, 100), (1000, 0)))
        assert found.allocation.sizes() == {"t1": 4, "t2": 5}


@given(st.data())
def test_the_best_sizes_are_those_of_trying_all(data: st.DataObject) -> None:
    """The sum is that of brute force, and so is the number of nodes at least."""
    count = data.draw(st.integers(0, 6))
    value = st.integers(-9, 9).map(float) | st.just(-math.inf)
    tables = [
        np.array([data.draw(st.integers(-3, 3)), *data.draw(st.lists(value, max_size=5))], float)
        for _ in range(data.draw(st.integers(0, 4)))
    ]
    ways = itertools.product(*(range(len(table)) for table in tables))
    sums = [
        math.fsum(table[n] for table, n in zip(tables, sizes, strict=True))
        for sizes in ways
        if sum(sizes) <= count
    ]
    found = best_sizes(tables, count)
    assert sum(found) <= count
    worth = math.fsum(table[n] for table, n in zip(tables, found, strict=True))
    assert worth == max(sums)
