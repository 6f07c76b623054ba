"""The policy no-rescale, by itself and in replays small enough to be added up by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.physical import PhysicalCosts, constant
from bftrainer.lab.simulator.session import Choices, job_nodes, play
from milp.problem import ProblemNode
from tests.conformance.policy import PolicyConformance
from tests.simulate.test_simulate import trace, trial
from tests.support.policies import allocated, problem_of, trainer
from tests.support.problems import sizes_of
from tests.unit.decide.test_policies import sizes

NAME = "no-rescale"


class TestNoRescale(PolicyConformance):
    name = NAME

    def test_who_waits_starts_at_the_largest_size_that_fits(self) -> None:
        problem = problem_of(
            9, trainer("t1", n_max=6), trainer("t2", n_min=4), trainer("t3", n_max=2)
        )
        assert sizes(NAME, problem) == (6, 0, 2)

    def test_who_runs_is_left_alone_whatever_is_free(self) -> None:
        problem = problem_of(9, trainer("t1", "n00", "n01"), trainer("t2", n_max=3))
        allocation = allocated(load_policy(NAME), problem)
        assert sizes_of(problem, allocation) == (2, 3)
        assert {n for n, t in allocation.assignment.items() if t == "t1"} == {"n00", "n01"}

    def test_later_trainers_that_run_come_before_earlier_ones_that_wait(self) -> None:
        problem = problem_of(3, trainer("t1", n_min=2), trainer("t2", "n00", "n01"))
        assert sizes(NAME, problem) == (0, 2)

    def test_who_lost_a_node_is_killed_and_its_nodes_serve_others(self) -> None:
        problem = problem_of(3, trainer("t1", "n00", "n01", "gone"), trainer("t2"))
        assert sizes(NAME, problem) == (0, 3)

    def test_fewer_nodes_than_n_min_kill_it_even_when_others_are_free(self) -> None:
        assert sizes(NAME, problem_of(9, trainer("t1", "n00", "n01", n_min=3, n_max=3))) == (0,)

    def test_who_lost_all_nodes_starts_again_at_once_where_it_fits(self) -> None:
        assert sizes(NAME, problem_of(2, trainer("t1", "gone"))) == (2,)

    def test_a_class_it_does_not_accept_is_of_no_use_to_it(self) -> None:
        picky = replace(trainer("t1"), eligible=("a",))
        problem = problem_of(2, picky, trainer("t2"))
        nodes = (
            ProblemNode(name="n00", eligibility="a"),
            ProblemNode(name="n01", eligibility="b"),
            ProblemNode(name="n02", eligibility="b"),
        )
        assert sizes(NAME, replace(problem, nodes=nodes)) == (1, 2)


class TestReplay:
    def test_it_is_killed_with_a_node_and_starts_again_when_it_fits(self) -> None:
        # Two nodes from 0; b leaves at 300: killed. c comes at 500: started on a and c.
        given = trace((0, 0, 1000), (1, 0, 300), (2, 500, 1000))
        choices = Choices(policy=NAME, job_nodes=2, p_jmax=1)
        outcome, found = play(given, [trial("t")], choices)
        (t,) = outcome.trainers
        # The preemption is fined with the rate of two nodes, the way down with that of one.
        assert t.done == pytest.approx(300 * 20 - 12 * 20 - 12 * 10 + 500 * 20)
        assert t.preemptions == 1
        assert t.rescales == 3  # start, end, start
        assert outcome.tally.node_s_used == pytest.approx(2 * 300 + 2 * 500)
        assert found.node_share_training == pytest.approx(1600 / 1800)

    def test_with_physical_costs_it_loses_what_is_not_on_disk(self) -> None:
        given = trace((0, 0, 1000), (1, 0, 310), (2, 500, 1000))
        costs = PhysicalCosts(checkpoint_interval=constant(100.0), resume=constant(5.0))
        choices = Choices(policy=NAME, job_nodes=2, p_jmax=1, costs=costs)
        outcome, _ = play(given, [trial("t")], choices)
        assert outcome.trainers[0].done == pytest.approx(300 * 20 + 495 * 20)

    def test_a_job_asks_for_the_static_share_within_its_bounds(self) -> None:
        given = trace((0, 0, 1000), (1, 0, 1000), (2, 0, 1000))
        assert job_nodes(given, Choices(p_jmax=2)) == round(3 / 2)
        assert job_nodes(given, Choices(p_jmax=9)) == 1
        assert job_nodes(given, Choices(job_nodes=7)) == 7
        outcome, _ = play(given, [trial("t", n_min=3)], Choices(policy=NAME, p_jmax=3))
        assert outcome.trainers[0].rescales == 1
        assert outcome.trainers[0].done == pytest.approx(1000 * 30)

    def test_nobody_is_ever_resized(self) -> None:
        given = generate(GeneratorParameters(n_nodes=48, hours=6.0, seed=5))
        seen: set[int] = set()
        play(
            given,
            [trial(f"t{i}", 3e5) for i in range(12)],
            Choices(policy=NAME, job_nodes=3, p_jmax=5),
            on_plan=lambda _, plan: seen.update(
                plan.allocation.sizes().values() if plan.allocation else ()
            ),
        )
        assert seen == {3}
