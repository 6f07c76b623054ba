"""The event kernel: order in time, ties, sources, and a clock that advances once per event."""

from __future__ import annotations

import math
from functools import partial

import pytest

from bftrainer.lab.kernel import Kernel


def test_ties_are_broken_by_rank_then_by_turn() -> None:
    seen: list[str] = []
    kernel = Kernel()
    for name, time, rank in (("d", 2.0, 0), ("b", 1.0, 1), ("c", 1.0, 1), ("a", 1.0, -1)):
        kernel.at(time, partial(seen.append, name), rank=rank)
    kernel.run()
    assert seen == ["a", "b", "c", "d"]
    assert kernel.now == 2.0


def test_the_limit_is_not_reached_but_the_clock_goes_there() -> None:
    seen: list[float] = []
    kernel = Kernel(5.0)
    kernel.at(1.0, lambda: seen.append(kernel.now))  # not before now
    kernel.at(9.0, lambda: seen.append(kernel.now))
    kernel.run(9.0)
    assert seen == [5.0]
    assert kernel.now == 9.0
    kernel.run()
    assert seen == [5.0, 9.0]


def test_a_source_is_asked_again_after_every_event() -> None:
    """A tank of 10 drains at rate 1, from second 4 on at 3: empty at 6."""
    tank = {"left": 10.0, "rate": 1.0}
    spans: list[float] = []

    def advance(to: float) -> None:
        spans.append(to - kernel.now)
        tank["left"] -= spans[-1] * tank["rate"]

    def empties() -> float:
        return kernel.now + tank["left"] / tank["rate"] if tank["left"] > 0.0 else math.inf

    kernel = Kernel(advance=advance)
    kernel.source(empties, lambda: tank.update(left=0.0))
    kernel.at(4.0, lambda: tank.update(rate=3.0))
    kernel.run()
    assert kernel.now == pytest.approx(6.0)
    assert spans == pytest.approx([4.0, 2.0])
