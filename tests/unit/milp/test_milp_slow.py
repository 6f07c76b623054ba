"""Slow nodes: what an allocation is worth with them, and which of them to leave out."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from statistics import mean

import pytest

from milp.problem import Curve, Objective, Problem, ProblemNode, ProblemTrainer
from milp.solve import solve
from milp.worth import MOST_TRIES, allocation_value, without, without_some, worth

SIZES = (1, 2, 4, 8, 16)


def _drawn(chance: random.Random) -> tuple[Problem, dict[str, float]]:
    """Up to four trainers on up to 14 nodes, of which up to five are slow."""
    names = [f"n{k}" for k in range(chance.randint(4, 14))]
    free, trainers = chance.sample(names, len(names)), []
    for k in range(chance.randint(1, 4)):
        exponent, n_min = chance.uniform(0.5, 1.0), chance.randint(1, 3)
        n_max = n_min + chance.randint(0, 6)
        size = chance.choice([0, chance.randint(n_min, n_max)])
        size = size if size <= len(free) else 0
        own, free = tuple(sorted(free[:size])), free[size:]
        trainers.append(
            ProblemTrainer(
                trainer_id=f"t{k}",
                n_min=n_min,
                n_max=n_max,
                curve=Curve(sizes=SIZES, samples_per_s=tuple(100 * n**exponent for n in SIZES)),
                rescale_up_s=chance.choice([0.5, 5.0, 20.0, 60.0]),
                rescale_down_s=chance.choice([0.2, 5.0, 20.0]),
                current=own,
                settled=own,
            )
        )
    problem = Problem(
        nodes=tuple(ProblemNode(name=name) for name in names),
        trainers=tuple(trainers),
        t_fwd_s=120.0,
        p_jmax=10,
        objective=Objective.SCALING_EFFICIENCY,
    )
    slow = chance.sample(names, chance.randint(1, min(5, len(names))))
    return problem, {name: chance.choice([0.25, 0.4, 0.5, 0.6, 0.7, 0.79]) for name in slow}


def _hiding(problem: Problem, hidden: frozenset[str]) -> Problem:
    nodes = tuple(node for node in problem.nodes if node.name not in hidden)
    return replace(problem, nodes=nodes, trainers=without(problem.trainers, hidden))


def test_the_tries_lose_little_of_the_best_that_leaving_out_slow_nodes_can_give() -> None:
    chance, lost, lost_untried = random.Random(1), [], []  # noqa: S311 - no secret
    for _ in range(60):
        problem, slow = _drawn(chance)
        subsets = [c for n in range(len(slow) + 1) for c in combinations(slow, n)]
        tries = list(without_some(problem, slow))
        every = [_hiding(problem, frozenset(c)) for c in subsets]
        untried, best, found = (
            max(worth(problem, slow, solve(one).assignment) for one in some)
            for some in ([problem], every, tries)
        )
        assert found <= best * (1.0 + 1e-9)
        lost.append(1.0 - found / best)
        lost_untried.append(1.0 - untried / best)
    assert mean(lost) < 0.01
    assert mean(lost_untried) > 0.1


def test_without_slow_nodes_an_allocation_is_worth_what_it_is_worth() -> None:
    chance = random.Random(2)  # noqa: S311 - no secret
    for _ in range(20):
        problem, _ = _drawn(chance)
        [same] = without_some(problem, {})
        assert same is problem
        assignment = solve(problem).assignment
        assert worth(problem, {}, assignment) == pytest.approx(
            allocation_value(problem, assignment)
        )


def test_of_many_slow_nodes_several_are_left_out_at_once() -> None:
    problem, _ = _drawn(random.Random(3))  # noqa: S311 - no secret
    nodes = tuple(ProblemNode(name=f"n{k:02}") for k in range(50))
    tries = list(without_some(replace(problem, nodes=nodes), {n.name: 0.5 for n in nodes}))
    assert len(tries) <= MOST_TRIES + 1
    assert [len(one.nodes) for one in (tries[0], tries[-1])] == [50, 0]
