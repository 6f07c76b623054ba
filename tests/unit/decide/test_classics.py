"""The classic schedulers keep the rules; each gives what its paper's rule gives by hand.

Rows: six nodes, 100 s after the first submission, three trainers. A and B are concave, C linear.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.decide.policies.base import Context, Decided, Standing, load_policy, options_of
from bftrainer.decide.policies.drf import dominant_share
from bftrainer.decide.policies.gavel_max_min import max_min_time_shares
from bftrainer.decide.policies.greedy_steps import Step, fill
from bftrainer.decide.policies.tetris import alignment, exchange_rate
from bftrainer.decide.policy_answer import ask
from bftrainer.decide.throughput.batch_curve import efficiency
from milp.problem import Curve, Problem, ProblemNode
from tests.conformance.policy import STANDINGS, PolicyConformance
from tests.support.examples import examples
from tests.support.policies import problem_of, trainer
from tests.support.problems import problems, sizes_of, with_current

CLASSICS = (
    "fifo",
    "srtf",
    "las",
    "tiresias",
    "optimus",
    "drf",
    "tetris",
    "themis",
    "gavel-max-min",
    "pollux",
)
RATES = {"A": (10, 19, 26, 31), "B": (10, 16, 19, 20), "C": (3, 6, 9)}
STANDING = {
    "A": Standing(submitted_s=0.0, attained_node_s=40.0, done_samples=400, left_samples=600),
    "B": Standing(submitted_s=60.0, attained_node_s=5.0, done_samples=50, left_samples=200),
    "C": Standing(submitted_s=80.0, attained_node_s=0.0, done_samples=0, left_samples=90),
}


def instance(n_nodes: int = 6, **n_max: int) -> Problem:
    """The instance of the rows; largest sizes are those of the curves or as given."""
    trainers = [
        replace(
            trainer(name, n_max=n_max.get(name, len(rates))),
            curve=Curve(sizes=tuple(range(1, 1 + len(rates))), samples_per_s=rates),
        )
        for name, rates in RATES.items()
    ]
    return problem_of(n_nodes, *trainers)


REQUESTED = instance(B=2)  # a rigid trainer requests n_max


def asked(
    name: str,
    problem: Problem,
    standing: Mapping[str, Standing] = STANDING,
    *,
    now_s: float = 100.0,
    state: Any = None,
    **options: Any,
) -> Decided:
    policy = load_policy(name)
    context = Context(
        now_s=now_s, options=options_of(policy, options), state=state, trainers=standing
    )
    return ask(policy, problem, context)


def sizes(name: str, problem: Problem, **more: Any) -> tuple[int, ...]:
    return sizes_of(problem, asked(name, problem, **more).allocation)


class TestFifo(PolicyConformance):
    name = "fifo"

    def test_row(self) -> None:
        assert sizes(self.name, REQUESTED) == (4, 2, 0)

    def test_who_does_not_fit_is_passed_over(self) -> None:
        assert sizes(self.name, instance(n_nodes=5, A=3, B=4)) == (3, 0, 0)
        assert sizes(self.name, instance(n_nodes=7, A=3, B=5)) == (3, 0, 3)
        assert asked(self.name, instance(n_nodes=7, A=3, B=5)).order == ("A", "C", "B")

    def test_who_runs_counts_for_p_jmax(self) -> None:
        problem = replace(instance(n_nodes=7, A=3, B=5), p_jmax=2)
        assert sizes(self.name, problem) == (3, 0, 3)
        assert sizes(self.name, replace(problem, p_jmax=1)) == (3, 0, 0)


class TestSrtf(PolicyConformance):
    name = "srtf"

    def test_row_for_requested_sizes(self) -> None:
        assert sizes(self.name, REQUESTED) == (0, 2, 3)

    def test_row_for_elastic_trainers(self) -> None:
        assert sizes(self.name, instance(), elastic=True) == (0, 3, 3)

    def test_a_longer_one_is_displaced(self) -> None:
        runs = replace(REQUESTED.trainers[0], current=("n00", "n01", "n02", "n03"))
        problem = replace(REQUESTED, trainers=(runs, *REQUESTED.trainers[1:]))
        assert sizes(self.name, problem) == (0, 2, 3)

    def test_who_has_no_goal_comes_last(self) -> None:
        endless = {**STANDING, "C": replace(STANDING["C"], left_samples=None)}
        assert asked(self.name, REQUESTED, endless).order[:2] == ("B", "A")
        assert sizes(self.name, REQUESTED, standing=endless) == (4, 2, 0)


class TestLas(PolicyConformance):
    name = "las"

    def test_row(self) -> None:
        decided = asked(self.name, REQUESTED)
        assert decided.allocation.sizes() == {"B": 2, "C": 3}
        assert decided.order == ("C", "B", "A")

    def test_who_runs_is_not_displaced_within_a_period(self) -> None:
        first = asked(self.name, REQUESTED, period_s=50.0)
        assert first.wake_at_s == 150.0
        had = {**STANDING, "C": replace(STANDING["C"], attained_node_s=90.0)}
        problem = with_current(REQUESTED, first.allocation)
        again = asked(self.name, problem, had, now_s=149.0, state=first.state, period_s=50.0)
        assert (again.order, again.wake_at_s) == (("B", "C", "A"), 150.0)
        later = asked(self.name, problem, had, now_s=150.0, state=again.state, period_s=50.0)
        assert (later.order, later.wake_at_s) == (("B", "A", "C"), 200.0)


class TestTiresias(PolicyConformance):
    name = "tiresias"

    def test_row(self) -> None:
        decided = asked(self.name, REQUESTED, threshold_node_s=30.0)
        assert decided.allocation.sizes() == {"B": 2, "C": 3}
        assert (decided.order, decided.state) == (("B", "C", "A"), ["A"])

    def test_it_is_asked_again_when_one_reaches_the_threshold(self) -> None:
        decided = asked(self.name, REQUESTED, threshold_node_s=30.0)
        assert decided.wake_at_s == 100.0 + 30.0 / 3  # C on three nodes; B needs 12.5 s
        alone = asked(self.name, instance(n_nodes=9, B=2), threshold_node_s=30.0)
        assert alone.wake_at_s is None  # nobody waits

    def test_the_second_queue_is_in_order_of_entry(self) -> None:
        both = {**STANDING, "B": replace(STANDING["B"], attained_node_s=31.0)}
        decided = asked(self.name, REQUESTED, both, threshold_node_s=30.0, state=["B"])
        assert (decided.order, decided.state) == (("C", "B", "A"), ["B", "A"])

    def test_by_default_the_threshold_is_sixteen_hours_of_one_node(self) -> None:
        assert options_of(self.policy(), {}).threshold_node_s == 16 * 3600


class TestOptimus(PolicyConformance):
    name = "optimus"

    def test_row(self) -> None:
        assert sizes(self.name, instance()) == (3, 1, 2)

    def test_a_node_that_saves_no_time_stays_free(self) -> None:
        falls = replace(trainer("A"), curve=Curve(sizes=(1, 2, 3), samples_per_s=(3.0, 5.0, 4.0)))
        assert sizes(self.name, problem_of(4, falls)) == (2,)

    def test_who_has_no_goal_takes_what_saves_the_others_little(self) -> None:
        endless = {**STANDING, "A": replace(STANDING["A"], left_samples=None)}
        assert sizes(self.name, replace(instance(), t_fwd_s=1.0), standing=endless) == (1, 2, 3)
        assert sizes(self.name, replace(instance(), t_fwd_s=60.0), standing=endless) == (3, 1, 2)


class TestDrf(PolicyConformance):
    name = "drf"

    def test_row(self) -> None:
        """NSDI'11: 9 processors and 18 GB; tasks of <1, 4> and <3, 1>."""
        capacity, demands = (9.0, 18.0), ((1.0, 4.0), (3.0, 1.0))
        tasks = [0, 0]

        def take(j: int, size: int) -> bool:
            wanted = [*tasks]
            wanted[j] = size
            used = [sum(d[i] * n for d, n in zip(demands, wanted, strict=True)) for i in (0, 1)]
            fits = used[0] <= capacity[0] and used[1] <= capacity[1]
            tasks[j] = size if fits else tasks[j]
            return fits

        def next_step(j: int, size: int) -> Step:
            used = [one * size for one in demands[j]]
            return Step(-dominant_share(used, capacity), size + 1)

        assert fill({0: 0, 1: 0}, next_step, take) == [0, 1, 0, 1, 0]
        assert tasks == [3, 2]
        used = [[one * n for one in d] for d, n in zip(demands, tasks, strict=True)]
        assert [dominant_share(one, capacity) for one in used] == [2 / 3, 2 / 3]

    def test_on_one_class_it_is_equal_share(self) -> None:
        @settings(max_examples=examples(30), deadline=None)
        @given(problems(max_nodes=9, max_trainers=4, classes="a"))
        def holds(problem: Problem) -> None:
            alike = tuple(replace(one, weight=1.0) for one in problem.trainers)
            problem = replace(problem, trainers=alike)
            known = dict.fromkeys((one.trainer_id for one in alike), STANDING["A"])
            expected = asked("equal-share", problem, known).allocation
            assert asked(self.name, problem, known).allocation.sizes() == expected.sizes()

        holds()

    def test_shares_are_by_weight(self) -> None:
        heavy = replace(trainer("t1"), weight=3.0)
        known = dict.fromkeys(("t1", "t2"), STANDING["A"])
        assert sizes(self.name, problem_of(8, heavy, trainer("t2")), standing=known) == (6, 2)


class TestTetris(PolicyConformance):
    name = "tetris"

    def test_row(self) -> None:
        """4 of 8 GPUs and 24 of 32 processors are free; <1, 12>, 40 left and <4, 8>, 400 left."""
        free, total = (4.0, 24.0), (8.0, 32.0)
        aligned = alignment([[1.0, 12.0], [4.0, 8.0]], free, total)
        assert aligned.tolist() == [0.34375, 0.4375]
        left = np.array([40.0, 400.0])
        scores = aligned - exchange_rate(aligned, left) * left
        assert scores.tolist() == pytest.approx([0.273, -0.273], abs=5e-4)

    def test_on_one_class_the_short_one_comes_before_the_long_one(self) -> None:
        """Work left: A 4 x 19.35 s, B 2 x 12.5 s, C 3 x 10 s; alignment 2/3, 1/3 and 1/2."""
        assert sizes(self.name, REQUESTED) == (0, 2, 3)

    def test_of_equal_work_the_one_that_fills_the_pool_better_is_first(self) -> None:
        same = dict.fromkeys(("t1", "t2"), replace(STANDING["A"], left_samples=60))
        problem = problem_of(6, trainer("t1", n_max=2), trainer("t2", n_max=5))
        assert sizes(self.name, problem, standing=same) == (0, 5)


class TestThemis(PolicyConformance):
    name = "themis"

    def test_row(self) -> None:
        assert sizes(self.name, instance()) == (1, 3, 2)

    def test_who_is_worst_off_enters(self) -> None:
        """With a fair share from now on: A 2.50, B 3.36, C 2.33."""
        decided = asked(self.name, replace(instance(), p_jmax=1))
        assert decided.allocation.sizes() == {"B": 4}
        assert decided.order == ("B", "A", "C")
        assert decided.wake_at_s == 100.0 + 1200.0


class TestGavelMaxMin(PolicyConformance):
    name = "gavel-max-min"

    def test_row(self) -> None:
        assert sizes(self.name, instance()) == (2, 2, 2)

    def test_row_of_two_types(self) -> None:
        """One V100 and one K80; 40 and 10 steps/s on them, 10 and 12 for the other."""
        found = max_min_time_shares([[40.0, 10.0], [10.0, 12.0]], [1.0, 1.0], [1, 1])
        assert found == [pytest.approx([1.0, 0.0]), pytest.approx([0.0, 1.0])]

    def test_time_is_shared_where_that_raises_the_smallest(self) -> None:
        [first, second] = max_min_time_shares([[4.0, 1.0], [4.0, 1.0]], [1.0, 1.0], [1, 1])
        assert first == pytest.approx([0.5, 0.5])
        assert second == pytest.approx([0.5, 0.5])

    def test_who_accepts_any_class_leaves_the_other_its_only_one(self) -> None:
        anywhere = trainer("t1")
        bound = replace(trainer("t2"), eligible=("b",))
        nodes = [ProblemNode(name=f"n{i}", eligibility="aabbb"[i]) for i in range(5)]
        problem = replace(problem_of(0, anywhere, bound), nodes=tuple(nodes))
        known = dict.fromkeys(("t1", "t2"), STANDING["A"])
        assert sizes(self.name, problem, standing=known) == (2, 3)

    def test_the_levels_are_the_best_of_all(self) -> None:
        def score(
            rates: list[tuple[float, ...]], vector: tuple[int, ...], fair: int
        ) -> list[float]:
            return sorted(r[n - 1] / r[fair - 1] for r, n in zip(rates, vector, strict=True))

        _is_best(self.name, score)


class TestPollux(PolicyConformance):
    name = "pollux"

    def test_row(self) -> None:
        """m0 128, phi 1000; a step takes .05 + .001 m/n + .04 (if n > 1) s."""

        def goodput(batch: int, n: int) -> float:
            rate = batch / (0.05 + 0.001 * batch / n + 0.04 * (n > 1))
            return rate * efficiency(float(batch), 128.0, 1000.0)

        batches = [128, 256, 512, 1024, 2048]
        best = [max(batches, key=partial(goodput, n=n)) for n in (1, 2, 4)]
        assert best == [256, 512, 512]
        found = [goodput(batch, n) for batch, n in zip(best, (1, 2, 4), strict=True)]
        assert found == pytest.approx([751.3, 1104.0, 1752.1], abs=0.05)

    def test_the_power_mean_is_the_best_of_all(self) -> None:
        def score(rates: list[tuple[float, ...]], vector: tuple[int, ...], fair: int) -> float:
            return -sum(r[fair - 1] / r[n - 1] for r, n in zip(rates, vector, strict=True))

        _is_best(self.name, score)


@st.composite
def concave(draw: st.DrawFn) -> tuple[float, ...]:
    slopes = sorted(draw(st.lists(st.integers(1, 30), min_size=6, max_size=6)), reverse=True)
    return tuple(float(rate) for rate in itertools.accumulate(slopes))


def _is_best(name: str, score: Any) -> None:
    """No other sizes of three trainers on six nodes score more."""

    @settings(max_examples=examples(30), deadline=None)
    @given(st.lists(concave(), min_size=3, max_size=3))
    def holds(rates: list[tuple[float, ...]]) -> None:
        trainers = [
            replace(trainer(f"t{j}"), curve=Curve(sizes=tuple(range(1, 7)), samples_per_s=rate))
            for j, rate in enumerate(rates)
        ]
        problem = problem_of(6, *trainers)
        known = dict.fromkeys((one.trainer_id for one in trainers), STANDING["A"])
        vectors = [v for v in itertools.product(range(1, 7), repeat=3) if sum(v) <= 6]
        best = max(score(rates, vector, 2) for vector in vectors)
        assert score(rates, sizes(name, problem, standing=known), 2) == pytest.approx(best)

    holds()


@pytest.mark.parametrize("name", CLASSICS)
def test_answers_with_mixed_classes_are_valid(name: str) -> None:
    """Also the second one, with the state of the first, when that has been carried out."""

    @settings(max_examples=examples(15), deadline=None)
    @given(problems(max_nodes=9, max_trainers=4, classes="ab", mixes=True), st.data())
    def holds(problem: Problem, data: st.DataObject) -> None:
        known = {one.trainer_id: data.draw(STANDINGS) for one in problem.trainers}
        decided = asked(name, problem, known, now_s=2000.0)
        carried_out = with_current(problem, decided.allocation)
        again = asked(name, carried_out, known, now_s=2001.0, state=decided.state)
        assert again.allocation.sizes().keys() <= known.keys()

    holds()


@pytest.mark.parametrize("name", CLASSICS)
def test_who_mixes_classes_keeps_its_nodes_and_gets_more(name: str) -> None:
    mixes = replace(trainer("t1", "n0", "n4"), mixes_classes=True)
    nodes = [ProblemNode(name=f"n{i}", eligibility="aabbb"[i]) for i in range(5)]
    problem = replace(problem_of(0, mixes, trainer("t2")), nodes=tuple(nodes))
    alone = replace(problem, trainers=(mixes,))
    known = dict.fromkeys(("t1", "t2"), STANDING["A"])
    assert sizes(name, alone, standing=known) == (5,)
    assert asked(name, problem, known).allocation.sizes()["t1"] >= 2
