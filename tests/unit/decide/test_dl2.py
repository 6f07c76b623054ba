"""The policy dl2: its rules, its network, and that nobody moves for nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.decide.policies.base import Context, Standing, load_policy, options_of
from bftrainer.decide.policies.dl2 import FEATURES, SHIPPED, Best, Dl2Options, Dl2Policy
from bftrainer.decide.policies.dl2_network import MOST_BYTES, Array, Mask, fresh, of_text, to_bytes
from bftrainer.model.plugins import content_of
from bftrainer.site.policy.document import PolicyErrors
from bftrainer.site.policy.load import load_policy_file
from milp.problem import Problem
from tests.conformance.policy import PolicyConformance
from tests.support.fleet import Fleet
from tests.support.policies import problem_of, trainer


class TestConformance(PolicyConformance):
    name = "dl2"


def context(problem: Problem) -> Context:
    known = Standing(submitted_s=0.0, attained_node_s=0.0, done_samples=0, left_samples=10**6)
    ids = [one.trainer_id for one in problem.trainers]
    return Context(now_s=100.0, options=Dl2Options(), trainers=dict.fromkeys(ids, known))


def greedy_for(place: int) -> Dl2Policy:
    """A policy that gives all it can to one trainer, then stops."""

    def choose(_: Array, mask: Mask) -> int:
        return place if mask[place] else len(mask) - 1

    return Dl2Policy(choose)


def sizes(policy: Dl2Policy, problem: Problem) -> dict[str, int]:
    return policy.allocate(problem, context(problem)).allocation.sizes()


def test_actions_are_taken_until_void() -> None:
    problem = problem_of(5, trainer("t1", n_max=3), trainer("t2"))
    assert sizes(greedy_for(0), problem) == {"t1": 3}
    assert sizes(Dl2Policy(lambda _, mask: len(mask) - 1), problem) == {}


def test_the_first_action_gives_n_min_and_who_does_not_fit_is_masked() -> None:
    problem = problem_of(3, trainer("t1", n_min=4), trainer("t2", n_min=2))
    masks: list[list[bool]] = []

    def choose(_: Array, mask: Mask) -> int:
        masks.append(mask.tolist())
        return 1 if mask[1] else 2

    assert sizes(Dl2Policy(choose), problem) == {"t2": 3}
    assert masks == [[False, True, True], [False, True, True]]


def test_nobody_moves_for_nothing() -> None:
    """Alike trainers, of which the network prefers the one without nodes."""
    has, lacks = trainer("t1", "n00", "n01"), trainer("t2")
    problem = problem_of(2, has, lacks)
    prefers_t2 = greedy_for(1)
    assert sizes(prefers_t2, problem) == {"t1": 2}
    assert sizes(Dl2Policy(prefers_t2._choose, goes_on=False), problem) == {"t2": 2}


def test_who_was_given_nodes_keeps_them_until_the_slot_ends() -> None:
    """Neither trains yet; the network prefers one, then the other."""
    problem = problem_of(2, trainer("t1"), trainer("t2"))
    first = context(problem)
    decided = greedy_for(0).allocate(problem, first)
    assert decided.allocation.sizes() == {"t1": 2}
    assert decided.wake_at_s == first.now_s + Dl2Options().slot_s  # t2 waits
    larger = problem_of(3, trainer("t1"), trainer("t2"))
    for later_s, found in ((60.0, {"t1": 2, "t2": 1}), (Dl2Options().slot_s, {"t2": 3})):
        later = replace(first, now_s=first.now_s + later_s, state=decided.state)
        assert greedy_for(1).allocate(larger, later).allocation.sizes() == found


def test_trainers_that_do_not_all_fit_do_not_park_each_other() -> None:
    """Sizes changed 152 times in 300 s: at every second look, those that had just started."""
    fleet = Fleet(4, policy="dl2", poll_s=5.0)
    for n_min, n_max, start_s, apart_s in (
        (2, 2, 1.0, 40.0), (2, 2, 1.0, 1.0), (1, 4, 5.0, 40.0), (2, 4, 5.0, 40.0),
    ):  # fmt: skip
        fleet.submit(n_min=n_min, n_max=n_max, start_s=start_s, steps=10**9)
        fleet.pass_time(apart_s)
    fleet.pass_time(200.0)
    sizes = fleet.sizes()
    assert not fleet.pass_time(60.0, lambda: fleet.sizes() != sizes)


def test_the_network_shipped_is_small_and_used() -> None:
    network = of_text(SHIPPED)
    assert len(to_bytes(network)) < MOST_BYTES
    problem = problem_of(4, trainer("t1"), trainer("t2"))
    policy = load_policy("dl2")
    decided = policy.allocate(problem, context(problem))
    assert sum(decided.allocation.sizes().values()) > 0
    named = Dl2Policy(Best(network)).allocate(problem, context(problem))
    assert decided.allocation == named.allocation


def test_the_state_names_the_network() -> None:
    problem = problem_of(2, trainer("t1"))
    other = content_of(to_bytes(fresh(FEATURES, 1, 40, 8, 5)))
    policy = load_policy("dl2")
    given = context(problem)
    shipped = policy.allocate(problem, given).state
    changed = Context(now_s=1.0, options=Dl2Options(model=other), trainers=given.trainers)
    assert policy.allocate(problem, changed).state != shipped


def test_a_policy_file_names_the_networks_file(tmp_path: Path) -> None:
    content = to_bytes(fresh(FEATURES, 1, 40, 8, 5))
    (tmp_path / "net.npz").write_bytes(content)
    site = tmp_path / "policy.yaml"
    site.write_text("policy: dl2\npolicy_options:\n  model: net.npz\n")
    site.chmod(0o600)
    found = load_policy_file(site).policy.policy_options
    assert found == {"model": content_of(content)}
    assert options_of(load_policy("dl2"), found) == Dl2Options(model=content_of(content))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.npz", "which cannot be read: No such file"),
        ("other.npz", "model is a network, but not of dl2"),
        ("garbage.npz", "model is not a network of dl2: it is not a network"),
    ],
)
def test_a_file_without_its_network_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "other.npz").write_bytes(to_bytes(fresh(3, 1, 40, 8, 5)))
    (tmp_path / "garbage.npz").write_bytes(b"PK")
    site = tmp_path / "policy.yaml"
    site.write_text(f"policy: dl2\npolicy_options:\n  model: {name}\n")
    site.chmod(0o600)
    with pytest.raises(PolicyErrors) as raised:
        load_policy_file(site)
    [problem] = raised.value.problems
    assert problem.code == "BFT-3053"
    assert said in problem.cause
