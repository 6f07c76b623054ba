"""What the figures of the zero-harm proof would be with runs called A and B at random."""

from __future__ import annotations

import random

import pytest
from _bench.zero_harm.chance import WAYS, by_chance


def test_every_run_is_called_b_in_turn() -> None:
    found = by_chance([([[0.0, 0.0], [0.0, 0.0], [10.0, 10.0]], 1)])
    assert found.n_ways == 3
    # The late one as B: 10 s more than two alike. As a control: it makes those 10 s apart.
    assert found.p95_s == pytest.approx((-10.0, 9.0))  # of -10, -10, 10


def test_the_runs_of_a_draw_stay_in_it() -> None:
    early, late = [[1.0, 2.0]] * 3, [[501.0, 502.0]] * 3
    found = by_chance([(early, 1), (late, 1)])
    assert found.n_ways == 9
    assert found.p95_s == found.p99_s == (0.0, 0.0)


def test_of_very_many_ways_the_same_ones_are_tried() -> None:
    chance = random.Random(3)  # noqa: S311
    draws = [([[chance.gauss(50.0, 9.0) for _ in range(40)] for _ in range(7)], 3)] * 3
    found = by_chance(draws)
    assert found.n_ways == WAYS
    assert found == by_chance(draws)
    low_s, high_s = found.p95_s
    assert low_s < 0.0 < high_s
