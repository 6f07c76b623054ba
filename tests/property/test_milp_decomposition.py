"""The bound of crossing caps and the costs of sizes, against every choice of sizes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp.decomposition import decompose
from milp.exact.group_caps import Members
from tests.support.examples import examples

NO_SIZE = -np.inf


@st.composite
def capped(draw: st.DrawFn) -> tuple[list[list[float]], list[tuple[Members, int]], list[float]]:
    """Values of up to four trainers and sizes, caps of any of them, any prices."""
    n_trainers, n_sizes = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    value = st.one_of(st.integers(-5, 20).map(float), st.floats(-5, 20), st.just(NO_SIZE))
    nothing = st.sampled_from([0.0, 0.0, 0.0, NO_SIZE])  # the latter has to run
    values = [
        [draw(nothing), *[draw(value) for _ in range(n_sizes - 1)]] for _ in range(n_trainers)
    ]
    groups = st.sets(st.integers(0, n_trainers - 1), min_size=1).map(sorted).map(tuple)
    members = draw(st.lists(groups, min_size=1, max_size=4, unique=True))
    caps = [(group, draw(st.integers(0, 7))) for group in members]
    prices = [draw(st.floats(0, 5)) for _ in caps]
    return values, caps, prices


@settings(max_examples=examples(200, of=4), deadline=None)
@given(capped())
def test_no_solution_is_worth_more_than_the_bound_less_what_its_sizes_cost(
    case: tuple[list[list[float]], list[tuple[Members, int]], list[float]],
) -> None:
    values, caps, prices = case
    decomposed = decompose(np.array(values), caps, prices)
    for sizes in itertools.product(*[range(len(row)) for row in values]):
        if any(sum([sizes[j] for j in members]) > most for members, most in caps):
            continue
        worth = math.fsum([row[n] for row, n in zip(values, sizes, strict=True)])
        if worth == NO_SIZE:
            continue
        assert decomposed is not None  # there is a solution
        for j, n in enumerate(sizes):
            assert worth <= decomposed.bound - decomposed.costs[j, n] + 1e-9


def test_two_families_agree_on_what_one_of_them_would_not_see() -> None:
    """By hand: a and b are of one user, b and c of one account, each cap is 2 nodes.

    Two nodes are worth 10 to each, one node 1. With prices of 5 a node the relaxation says 15: half
    of each. Best are two nodes for a and two for c: 20. All three in halves is no better, and the
    bound is 20, so b with two nodes, which leaves at most 10, costs at least 10 less.
    """
    values = np.array([[0.0, 1.0, 10.0]] * 3)
    decomposed = decompose(values, [((0, 1), 2), ((1, 2), 2)], [5.0, 5.0])
    assert decomposed is not None
    assert decomposed.bound == pytest.approx(20.0)
    assert decomposed.costs[0, 2] == decomposed.costs[2, 2] == pytest.approx(0.0)


def test_odd_cycles_of_caps_leave_a_gap_that_is_told() -> None:
    """By hand: three trainers, each two of which have one node together; a node is worth 1.

    One of them has it: 1. No bound of this kind is below 1.5, half a node each.
    """
    values = np.array([[0.0, 1.0]] * 3)
    decomposed = decompose(values, [((0, 1), 1), ((1, 2), 1), ((0, 2), 1)], [0.5, 0.5, 0.5])
    assert decomposed is not None
    assert 1.5 - 1e-9 <= decomposed.bound <= 2.0


def test_nobody_who_must_run_fits() -> None:
    values = np.array([[NO_SIZE, NO_SIZE, 3.0]])
    assert decompose(values, [((0,), 1)], [0.0]) is None


def test_too_much_work_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milp.decomposition.MOST_WORK", 10)
    assert decompose(np.zeros((3, 4)), [((0, 1), 2)], [0.0]) is None
