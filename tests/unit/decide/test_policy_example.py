"""The policy that docs/reference/policy-plugins.md shows does what the page says of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.decide.policies.base import AllocationPolicy, Context, Standing, load_policy
from bftrainer.decide.policy_answer import ask
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.replay import Replay
from bftrainer.lab.simulator.session import Choices, settings_of
from bftrainer.lab.simulator.trainers import Tally
from bftrainer.model.errors import UsageError
from bftrainer.site.policy import PolicyErrors, load_policy_file
from tests.conformance.policy import PolicyConformance
from tests.simulate.test_simulate import trace, trial
from tests.support.installed import installed, write_package
from tests.support.policies import problem_of, trainer

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "policy-plugins.md").read_text()
SOURCE, SITE_FILE = (
    re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[0] for kind in ("python", "yaml")
)
NAME = "least-attained"
OLD = """
class Old:
    name = "old"
    def allocate(self, problem):
        return None
POLICY = Old()
"""


@pytest.fixture(scope="module", autouse=True)
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllocationPolicy]:
    with installed(write_package(tmp_path_factory.mktemp("site"), NAME, SOURCE), NAME):
        yield load_policy(NAME)


@pytest.fixture
def problems_of(tmp_path: Path) -> Callable[[str], list[tuple[int, str, str]]]:
    """What is wrong with a policy file: line, code, cause and next step."""

    def check(text: str) -> list[tuple[int, str, str]]:
        path = tmp_path / "policy.yaml"
        path.write_text(text)
        path.chmod(0o644)
        try:
            load_policy_file(path)
        except PolicyErrors as errors:
            return [(p.line, p.code, f"{p.cause} {p.next_step}") for p in errors.problems]
        return []

    return check


class TestExample(PolicyConformance):
    name = NAME


def test_who_has_had_the_least_enters_first_and_the_order_holds_for_a_while(
    example: AllocationPolicy,
) -> None:
    problem = replace(problem_of(2, trainer("t1"), trainer("t2"), trainer("t3")), p_jmax=1)

    def standing(node_s: float) -> Standing:
        return Standing(submitted_s=0.0, attained_node_s=node_s, done_samples=0, left_samples=None)

    def context(now_s: float, *node_s: float, state: object = None) -> Context:
        known = {f"t{j}": standing(one) for j, one in enumerate(node_s, start=1)}
        options = example.traits.options(period_s=100.0)
        return Context(now_s=now_s, options=options, state=state, trainers=known)

    first = ask(example, problem, context(0.0, 30.0, 10.0, 20.0))
    assert (first.allocation.sizes(), first.wake_at_s) == ({"t2": 2}, 100.0)
    again = ask(example, problem, context(99.0, 30.0, 50.0, 20.0, state=first.state))
    assert (again.allocation.sizes(), again.state) == ({"t2": 2}, first.state)
    later = ask(example, problem, context(100.0, 30.0, 50.0, 20.0, state=first.state))
    assert (later.allocation.sizes(), later.wake_at_s) == ({"t3": 2}, 200.0)


def test_the_simulator_plays_it_with_all_trainers_in_sight(example: AllocationPolicy) -> None:
    """One trainer at a time on two nodes, the next one in turn every 100 s."""
    settings = replace(settings_of(Choices(p_jmax=1)), policy_options={"period_s": 100.0})
    given = trace((0, 0, 600), (1, 0, 600), end_s=600.0)
    trials = [trial(name) for name in ("a", "b", "c")]
    books = PaperModel(Tally())
    outcome = Replay(given, trials, settings=settings, policy=example, books=books).run()
    assert [t.node_s for t in outcome.trainers] == [400.0, 400.0, 400.0]
    assert [t.started_s for t in outcome.trainers] == [0.0, 100.0, 200.0]


def test_the_site_s_file_is_valid_and_each_mistake_has_its_line(
    problems_of: Callable[[str], list[tuple[int, str, str]]],
) -> None:
    assert problems_of(SITE_FILE) == []
    head = f"policy: {NAME}\npolicy_options:\n"
    [(line, code, said)] = problems_of(head + "  periods: 3\n")
    assert (line, code) == (3, "BFT-3053")
    assert said.endswith("has no option 'periods'. Did you mean period_s?")
    [(line, code, said)] = problems_of(head + "\n  period_s: soon\n")
    assert (line, code) == (4, "BFT-3053")
    assert "Option 'period_s' of the policy least-attained is wrong: must be a number" in said
    [(line, code, said)] = problems_of(head + "  period_s: 0\n")
    assert code == "BFT-3053"
    assert "period_s is 0, but must be more than 0" in said
    [(line, code, said)] = problems_of("p_jmax: 3\npolicy_options:\n  period_s: 3\n")
    assert (line, code) == (3, "BFT-3053")
    assert said == "The policy milp has no option 'period_s'. It has no options."
    assert problems_of("policy_options: 3\n")[0][:2] == (1, "BFT-2111")


def test_a_policy_of_an_earlier_release_says_what_to_do(
    tmp_path: Path, problems_of: Callable[[str], list[tuple[int, str, str]]]
) -> None:
    with installed(write_package(tmp_path, "old", OLD), "old"):
        with pytest.raises(UsageError, match=r"BFT-3052.*allocate\(problem, context\)"):
            load_policy("old")
        assert problems_of("p_jmax: 3\npolicy: old\n")[0][:2] == (2, "BFT-3052")


def test_what_has_no_traits_is_no_policy(tmp_path: Path) -> None:
    source = OLD.replace("problem)", "problem, context)")
    with (
        installed(write_package(tmp_path, "old", source), "old"),
        pytest.raises(UsageError, match=r"BFT-3051.*no name, traits and allocate"),
    ):
        load_policy("old")
