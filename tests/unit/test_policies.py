"""Every policy keeps the rules; each has its own idea of who gets what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from bftrainer.decide.policies.base import Policy, load_policy, policy_names
from bftrainer.errors import ExitCode, UsageError
from milp.check import find_violations
from milp.errors import ProblemError
from milp.problem import Allocation, Curve, Problem, ProblemNode, ProblemTrainer
from tests.support.problems import problems, sizes_of

CURVE = Curve(sizes=(1, 16), samples_per_s=(1.0, 16.0))


def trainer(name: str, *current: str, n_min: int = 1, n_max: int = 16) -> ProblemTrainer:
    return ProblemTrainer(
        trainer_id=name,
        n_min=n_min,
        n_max=n_max,
        curve=CURVE,
        rescale_up_s=1.0,
        rescale_down_s=1.0,
        current=current,
    )


def problem_of(n_nodes: int, *trainers: ProblemTrainer) -> Problem:
    return Problem(
        nodes=tuple(ProblemNode(name=f"n{i:02}") for i in range(n_nodes)),
        trainers=trainers,
        t_fwd_s=100.0,
        p_jmax=len(trainers),
    )


class PolicyConformance:
    """What every policy must do; a policy's own test class derives from this."""

    name: str

    def policy(self) -> Policy:
        return load_policy(self.name)

    def test_is_found_by_its_name(self) -> None:
        assert self.name in policy_names()
        assert self.policy().name == self.name

    def test_keeps_the_rules(self) -> None:
        policy = self.policy()

        @settings(max_examples=60, deadline=None)
        @given(problems(max_nodes=9, max_trainers=4, classes="abc"))
        def holds(problem: Problem) -> None:
            allocation = policy.allocate(problem)
            assert find_violations(problem, allocation) == []
            assert set(allocation.marginals) == {t.trainer_id for t in problem.trainers}
            assert policy.allocate(problem) == allocation

        holds()

    def test_empty_pool_and_no_trainers(self) -> None:
        assert self.policy().allocate(problem_of(0, trainer("t1"))).assignment == {}
        assert self.policy().allocate(problem_of(3)).assignment == {}

    def test_uses_what_is_idle(self) -> None:
        allocation = self.policy().allocate(problem_of(3, trainer("t1")))
        assert allocation.sizes() == {"t1": 3}

    def test_refuses_what_is_malformed(self) -> None:
        with pytest.raises(ProblemError, match="BFT-3006"):
            self.policy().allocate(problem_of(3, trainer("t1", n_min=4, n_max=3)))


class TestMilp(PolicyConformance):
    name = "milp"

    def test_is_at_least_as_good_as_the_others(self) -> None:
        others = [load_policy(name) for name in policy_names() if name != self.name]
        assert len(others) >= 2

        @settings(max_examples=60, deadline=None)
        @given(problems(max_nodes=9, max_trainers=4, classes="ab"))
        def holds(problem: Problem) -> None:
            best = self.policy().allocate(problem).objective
            for other in others:
                value = other.allocate(problem).objective
                assert value <= best + 1e-9 * (abs(best) + abs(value))

        holds()


def sizes(name: str, problem: Problem) -> tuple[int, ...]:
    allocation: Allocation = load_policy(name).allocate(problem)
    return sizes_of(problem, allocation)


class TestEqualShare(PolicyConformance):
    name = "equal-share"

    def test_shares_equally_and_first_come_gets_the_rest(self) -> None:
        problem = problem_of(8, trainer("t1"), trainer("t2"), trainer("t3"))
        assert sizes(self.name, problem) == (3, 3, 2)

    def test_bounds_come_first(self) -> None:
        problem = problem_of(
            12, trainer("t1", n_max=2), trainer("t2", n_min=6), trainer("t3"), trainer("t4")
        )
        assert sizes(self.name, problem) == (2, 6, 2, 2)

    def test_who_cannot_have_n_min_waits(self) -> None:
        problem = problem_of(5, trainer("t1", n_min=3), trainer("t2", n_min=4), trainer("t3"))
        assert sizes(self.name, problem) == (3, 0, 2)

    def test_only_the_first_p_jmax_share(self) -> None:
        problem = replace(problem_of(6, trainer("t1"), trainer("t2"), trainer("t3")), p_jmax=2)
        assert sizes(self.name, problem) == (3, 3, 0)


class TestFcfsGreedy(PolicyConformance):
    name = "fcfs-greedy"

    def test_first_come_takes_all_it_can(self) -> None:
        problem = problem_of(
            9, trainer("t1", n_max=6), trainer("t2", n_min=4), trainer("t3", n_max=2)
        )
        assert sizes(self.name, problem) == (6, 0, 2)


def test_unknown_policy_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="BFT-3050") as caught:
        load_policy("magic")
    assert caught.value.exit_code is ExitCode.VALIDATION_FAILED
    assert "equal-share, fcfs-greedy, milp" in caught.value.next_step
