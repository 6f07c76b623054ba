"""How long to wait with a look after the end of a job."""

from __future__ import annotations

import pytest

from bftrainer.poll.ending import LEAST_S, MOST_S, Ending

NOBODY: frozenset[str] = frozenset()


def _after_ends(idle_after_s: float, count: int) -> Ending:
    """Let jobs end one after the other, their node idle so long after."""
    ending = Ending(again_s=1.0, longest_s=30.0)
    for n in range(count):
        since_s = 0.0
        wait_s: float | None = ending.ended(["n1"], 100.0 * n)
        while wait_s is not None:
            since_s += wait_s
            completing = NOBODY if since_s >= idle_after_s else frozenset({"n1"})
            wait_s = ending.saw(completing, 100.0 * n + since_s)
    return ending


@pytest.mark.parametrize("idle_after_s", [0.35, 0.8, 3.0])
def test_the_look_comes_when_the_nodes_are_idle(idle_after_s: float) -> None:
    assert idle_after_s * 0.9 < _after_ends(idle_after_s, 100).wait_s < idle_after_s * 1.25


@pytest.mark.parametrize(("idle_after_s", "wait_s"), [(0.0, LEAST_S), (60.0, MOST_S)])
def test_the_wait_has_bounds(idle_after_s: float, wait_s: float) -> None:
    assert _after_ends(idle_after_s, 100).wait_s == wait_s


def test_a_node_that_is_still_completing_is_looked_at_less_and_less() -> None:
    ending = Ending(again_s=1.0, longest_s=3.0)
    now_s, waits_s = ending.ended(["n1"], 0.0), []
    for _ in range(4):
        wait_s = ending.saw(frozenset({"n1"}), now_s)
        assert wait_s is not None
        waits_s.append(wait_s)
        now_s += wait_s
    assert waits_s == [1.0, 2.0, 3.0, 3.0]
    assert ending.saw(NOBODY, now_s) is None


def test_a_look_before_its_time_says_nothing() -> None:
    ending = Ending(again_s=1.0, longest_s=30.0)
    ending.ended(["n1"], 0.0)
    assert ending.saw(frozenset({"n1"}), LEAST_S / 2) is None  # there will be one
    assert ending.wait_s == LEAST_S


def test_a_node_nobody_announced_is_looked_at_again() -> None:
    assert Ending(again_s=1.0, longest_s=30.0).saw(frozenset({"n1"}), 0.0) == 1.0
