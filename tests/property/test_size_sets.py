"""Trainers that may have certain sizes only: every policy, and the exact solver against all maps.

The rule that is checked is ``find_violations``, which shares no code with the solvers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.decide.policies.base import Context, Standing, load_policy, options_of, policy_names
from bftrainer.decide.policy_answer import ask
from milp.check import check, find_violations
from milp.problem import Problem, ProblemError
from milp.solve import solve
from milp.victims import choose_victims
from tests.support.examples import examples
from tests.support.policies import problem_of, trainer
from tests.support.problems import problems, sizes_of, try_every_map

ONE = problems(max_nodes=5, max_trainers=3, extras=True, sets=True)
CLASSES = problems(max_nodes=4, max_trainers=3, classes="ab", mixes=True, extras=True, sets=True)
CAPS = problems(max_nodes=4, max_trainers=3, caps=True, musts=True, sets=True)


@settings(max_examples=examples(100), deadline=None)
@given(st.one_of(ONE, CLASSES, CAPS))
def test_no_map_is_better_than_the_exact_answer(problem: Problem) -> None:
    try:
        best, _ = try_every_map(problem)
    except ValueError:  # no map keeps the rules
        with pytest.raises(ProblemError, match="BFT-1542"):
            solve(problem)
        return
    found = solve(problem)
    check(problem, found)
    assert found.gap == 0.0
    assert found.objective == pytest.approx(best, rel=1e-9, abs=1e-9)


def answered(name: str, problem: Problem) -> tuple[int, ...]:
    policy = load_policy(name)
    new = Standing(submitted_s=0.0, attained_node_s=0.0, done_samples=0, left_samples=1000.0)
    context = Context(
        now_s=0.0,
        options=options_of(policy, {}),
        trainers={one.trainer_id: new for one in problem.trainers},
    )
    decided = ask(policy, problem, context)
    order = [one for one in decided.order if one] or [t.trainer_id for t in problem.trainers]
    known = {t.trainer_id: t for t in problem.trainers}
    entering = tuple([known[one] for one in dict.fromkeys([*order, *known])])
    assert not find_violations(replace(problem, trainers=entering), decided.allocation)
    return sizes_of(problem, decided.allocation)


@pytest.mark.parametrize("name", [n for n in policy_names() if n != "dl2"])  # needs its network
@settings(max_examples=examples(8), deadline=None)
@given(problem=problems(max_nodes=9, max_trainers=4, sets=True, caps=True))
def test_every_policy_keeps_to_the_sets(name: str, problem: Problem) -> None:
    answered(name, problem)


@pytest.mark.parametrize(
    ("name", "n_nodes", "sizes"),
    [("milp", 7, (4, 3)), ("fcfs-greedy", 7, (4, 3)), ("equal-share", 6, (2, 4))],
)
def test_others_use_what_a_set_leaves(name: str, n_nodes: int, sizes: tuple[int, int]) -> None:
    first = replace(trainer("t1"), n_max=8, sizes=(2, 4, 8))
    problem = problem_of(n_nodes, first, trainer("t2", n_max=4))
    assert answered(name, problem) == sizes


def test_giving_one_node_back_takes_the_next_smaller_size() -> None:
    whole = replace(trainer("t1", "n00", "n01", "n02", "n03"), n_max=4, sizes=(1, 2, 4))
    given_back = choose_victims(problem_of(4, whole), 1)
    assert given_back.sizes_after == {"t1": 2}
    assert (len(given_back.nodes), len(given_back.freed)) == (1, 1)
    assert given_back.cost == pytest.approx(200.0 + 4.0)  # two nodes for 100 s, and the pause
