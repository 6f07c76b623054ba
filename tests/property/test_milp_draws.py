"""The benchmarks' random problems: sound, repeatable, and solved by the rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp.check import check, validate
from milp.solve import solve
from tests.support.drawn_problems import FAMILIES, draw_problem, draw_small


@settings(max_examples=30, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    n_trainers=st.integers(1, 8),
    n_nodes=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
def test_a_family_is_drawn_soundly(family: str, n_trainers: int, n_nodes: int, seed: int) -> None:
    problem = draw_problem(n_trainers, n_nodes, family, seed)
    validate(problem)
    assert problem == draw_problem(n_trainers, n_nodes, family, seed)
    assert len(problem.trainers) == n_trainers
    check(problem, solve(problem))


@settings(max_examples=30, deadline=None)
@given(classes=st.sampled_from(["a", "ab", "abc"]), extras=st.booleans(), seed=st.integers(0, 1000))
def test_a_small_problem_is_drawn_soundly(classes: str, extras: bool, seed: int) -> None:
    problem = draw_small(seed, classes=classes, extras=extras)
    validate(problem)
    assert problem == draw_small(seed, classes=classes, extras=extras)
    check(problem, solve(problem))


def test_families_and_seeds_differ() -> None:
    drawn = [draw_problem(6, 60, family, seed) for family in FAMILIES for seed in range(3)]
    assert all(one != other for i, one in enumerate(drawn) for other in drawn[:i])


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(ValueError, match="no family 'odd'; there are mixed, "):
        draw_problem(1, 1, "odd", 1)
