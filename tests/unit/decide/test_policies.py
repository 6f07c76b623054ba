"""Every policy keeps the rules; each has its own idea of who gets what."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given, settings

from bftrainer.decide.policies.base import load_policy, policy_names
from bftrainer.model import plugins
from bftrainer.model.errors import ExitCode, UsageError
from milp.problem import Problem
from tests.conformance.policy import PolicyConformance
from tests.support.examples import examples
from tests.support.policies import allocated, problem_of, trainer
from tests.support.problems import problems, sizes_of


class TestMilp(PolicyConformance):
    name = "milp"

    def test_is_at_least_as_good_as_the_others(self) -> None:
        others = [load_policy(name) for name in policy_names() if name != self.name]
        others = [one for one in others if not one.traits.admits]  # milp takes the first p_jmax
        assert len(others) >= 2

        @settings(max_examples=examples(60), deadline=None)
        @given(problems(max_nodes=9, max_trainers=4, classes="ab"))
        def holds(problem: Problem) -> None:
            best = allocated(self.policy(), problem).objective
            for other in others:
                value = allocated(other, problem).objective
                assert value <= best + 1e-9 * (abs(best) + abs(value))

        holds()


def sizes(name: str, problem: Problem) -> tuple[int, ...]:
    return sizes_of(problem, allocated(load_policy(name), problem))


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
    assert "Use one of: " + ", ".join(policy_names()) in caught.value.next_step


def test_a_new_policy_that_is_not_installed_yet_says_what_to_do() -> None:
    """What goes wrong first for whoever adds one: nobody has read the new line yet."""

    class TestNewPolicy(PolicyConformance):
        name = "not-installed-yet"

    with pytest.raises(AssertionError, match=r"setup\.cfg.*pip install -e \."):
        TestNewPolicy().policy()


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ("bftrainer.decide.policies.gone", "ModuleNotFoundError"),
        ("bftrainer.decide.policies.milp:GONE", "AttributeError"),
    ],
)
def test_a_policy_that_cannot_be_imported_is_named_with_the_reason(
    declared: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name stays installed when git takes its module back."""
    entry = EntryPoint(name="ghost", value=declared, group="bftrainer.policies")
    monkeypatch.setattr(plugins, "entry_points", lambda **_: [entry])
    with pytest.raises(UsageError) as refused:
        load_policy("ghost")
    assert refused.value.code == "BFT-3050"
    assert reason in refused.value.cause
    assert "pip install -e ." in refused.value.next_step
