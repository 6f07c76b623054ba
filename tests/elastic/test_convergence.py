"""The arithmetic of ``bench_convergence``: what counts as equal, and its table."""

from __future__ import annotations

import random

import bench_convergence
import pytest
from _bench.convergence import Outcome, _other_nodes


def outcome(fixed: tuple[float, ...], rescaled: tuple[float, ...]) -> Outcome:
    return Outcome(
        model="mlp",
        epochs=3,
        seeds=tuple(range(len(fixed))),
        fixed=fixed,
        rescaled=rescaled,
        rescales=(31,) * len(fixed),
    )


@pytest.mark.parametrize(
    ("fixed", "rescaled", "is_met"),
    [
        ((0.96, 0.97, 0.98), (0.95, 0.96, 0.97), True),
        ((0.96, 0.97, 0.98), (0.93, 0.94, 0.96), False),
        ((0.96, 0.97, 0.98), (0.99, 1.0, 1.0), False),  # better is not the same either
        ((0.97, 0.97), (0.97, 0.965), True),  # no spread: two test samples
        ((0.97, 0.97), (0.96, 0.96), False),
    ],
)
def test_the_verdict_is_about_the_means_and_the_spread(
    fixed: tuple[float, ...], rescaled: tuple[float, ...], is_met: bool
) -> None:
    accuracy, rescales = bench_convergence.targets_of([outcome(fixed, rescaled)], 30)
    assert accuracy.is_met is is_met
    assert rescales.is_met
    assert not bench_convergence.targets_of([outcome(fixed, rescaled)], 32)[1].is_met


def test_the_next_nodes_differ_and_one_stays() -> None:
    chance = random.Random(1)  # noqa: S311 - a test's schedule
    held = ["n0"]
    for _ in range(200):
        chosen = _other_nodes(held, ["n0", "n1", "n2"], chance)
        assert set(chosen) != set(held)
        assert set(chosen) & set(held)
        held = chosen
