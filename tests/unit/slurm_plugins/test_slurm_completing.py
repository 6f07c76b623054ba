"""A node that is cleared after a job is free in a moment, or hangs."""

from __future__ import annotations

from slurm_plugins.states import FACTOR, LEAST_S, REMEMBERED, Completing


def _took(fold: Completing, node: str, seconds: float, now_s: float) -> float:
    """Let a node be completing for so long; return when it is not any more."""
    fold.hanging({node}, now_s)
    fold.hanging(set(), now_s + seconds)
    return now_s + seconds


def test_one_that_takes_its_time_hangs_until_it_is_cleared() -> None:
    fold = Completing()
    assert fold.hanging({"n1"}, 0.0) == set()
    assert fold.hanging({"n1", "n2"}, LEAST_S) == set()
    assert fold.hanging({"n1", "n2"}, LEAST_S + 1) == {"n1"}
    assert fold.hanging({"n2"}, LEAST_S + 2) == set()
    assert fold.hanging({"n1"}, LEAST_S + 3) == set()  # of another job


def test_how_long_epilogs_take_here_is_learnt() -> None:
    fold, now_s = Completing(), 0.0
    for _ in range(3):
        now_s = _took(fold, "n1", 30.0, now_s)
    fold.hanging({"n1"}, now_s)
    assert fold.hanging({"n1"}, now_s + FACTOR * 30.0) == set()
    assert fold.hanging({"n1"}, now_s + FACTOR * 30.0 + 1) == {"n1"}


def test_one_that_hung_for_an_hour_teaches_nothing() -> None:
    fold, now_s = Completing(), 0.0
    for _ in range(REMEMBERED):
        now_s = _took(fold, "n1", 1.0, now_s)
    now_s = _took(fold, "n2", 3600.0, now_s)
    fold.hanging({"n1"}, now_s)
    assert fold.hanging({"n1"}, now_s + LEAST_S + 1) == {"n1"}
