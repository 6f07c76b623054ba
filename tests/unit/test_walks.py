"""How often a reader who follows a decision comes back to a module: it must not grow again."""

from __future__ import annotations

from statistics import median

from trace_walks import MOST_RETURNS, decisions, returns

MOST_OF_ANY = 64  # goal: MOST_RETURNS for any; the median is there


def test_a_decision_seldom_returns_to_a_module() -> None:
    walks = [returns(walk) for walk in decisions(every=50)]
    assert len(walks) > 50
    assert median(walks) <= MOST_RETURNS
    assert max(walks) <= MOST_OF_ANY
