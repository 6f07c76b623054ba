"""What a rescale and a generation teach."""

from __future__ import annotations

import pytest

from bftrainer.actuate.costs import NOISE, learn_rescale, learn_throughput
from bftrainer.actuate.group import Rescaled
from bftrainer.trainer import MeasuredCosts


def _rescaled(before: int, after: int, pause_s: float, reason: str = "planned") -> Rescaled:
    return Rescaled(
        generation=3,
        attempt=1,
        size_before=before,
        size=after,
        reason=reason,
        pause_s=pause_s,
        formation_s=1.0,
        step=10,
        epoch=0,
        samples=100,
        nodes=(),
        resumed_from="",
    )


def test_grow_and_shrink_are_learnt_apart() -> None:
    costs = learn_rescale(MeasuredCosts(), _rescaled(1, 2, 0.3))
    assert (costs.rescale_up_s, costs.rescale_down_s) == (0.3, None)
    costs = learn_rescale(costs, _rescaled(2, 1, 0.05))
    assert (costs.rescale_up_s, costs.rescale_down_s) == (0.3, 0.05)


@pytest.mark.parametrize(
    "done",
    [
        _rescaled(0, 2, 0.3, "start"),
        _rescaled(0, 2, 0.3),
        _rescaled(3, 2, 0.3, "a member was lost"),
        _rescaled(2, 2, 0.3),
    ],
)
def test_starts_losses_and_equal_sizes_teach_nothing(done: Rescaled) -> None:
    assert learn_rescale(MeasuredCosts(), done) == MeasuredCosts()


def test_noise_changes_nothing_and_a_real_change_half() -> None:
    known = MeasuredCosts(rescale_up_s=1.0)
    for pause_s in (1.0 - NOISE, 1.0, 1.0 + NOISE):
        assert learn_rescale(known, _rescaled(1, 2, pause_s)) == known
    assert learn_rescale(known, _rescaled(1, 2, 2.0)).rescale_up_s == 1.5
    assert learn_rescale(MeasuredCosts(rescale_up_s=0.0), _rescaled(1, 2, 0.2)).rescale_up_s == 0.1


def test_repeated_measurements_settle() -> None:
    costs = MeasuredCosts(rescale_down_s=8.0)
    seen = []
    for _ in range(20):
        costs = learn_rescale(costs, _rescaled(4, 2, 0.1))
        seen.append(costs.rescale_down_s)
    assert seen[-1] is not None
    assert seen[-1] == seen[-2]
    assert abs(seen[-1] - 0.1) <= NOISE * seen[-1]


def test_throughput_is_kept_by_size_in_order() -> None:
    costs = learn_throughput(MeasuredCosts(), 4, 300.0)
    costs = learn_throughput(costs, 1, 100.0)
    costs = learn_throughput(costs, 4, 310.0)
    assert costs.samples_per_s_by_size == ((1, 100.0), (4, 300.0))
    costs = learn_throughput(costs, 4, 500.0)
    assert costs.samples_per_s_by_size == ((1, 100.0), (4, 400.0))


def test_no_throughput_is_no_measurement() -> None:
    assert learn_throughput(MeasuredCosts(), 2, 0.0) == MeasuredCosts()
