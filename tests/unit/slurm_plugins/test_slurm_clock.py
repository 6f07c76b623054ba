"""Times of the controller's clock are read as times of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_plugins import parse
from slurm_plugins.parse import ControllerClock

T0 = 1_795_198_016.0
RECORDED = Path(__file__).parents[2] / "fixtures" / "slurm" / "22.05"


def sdiag(at_s: float) -> str:
    return f"***\nsdiag output at Fri Nov 20 18:06:59 2026 ({int(at_s)})\nData since x (5)\n***\n"


def heard(ahead_s: float, *, n: int = 4, apart_s: float = 1.3, takes_s: float = 0.02) -> float:
    """How far the clock is found to be ahead by so many answers."""
    clock = ControllerClock()
    for k in range(n):
        sent_s = T0 + k * apart_s
        text = sdiag(sent_s + takes_s / 2 + ahead_s)
        clock.hear(text, sent_s=sent_s, received_s=sent_s + takes_s)
    return clock.ahead_s


@pytest.mark.parametrize("ahead_s", [0.0, 0.4, -0.4])
def test_clocks_that_may_be_the_same_are(ahead_s: float) -> None:
    assert heard(ahead_s, n=1) == 0.0


@pytest.mark.parametrize("ahead_s", [7.0, -7.0, 3600.4, 2.0])
def test_how_far_it_is_ahead_is_found_from_the_first_answer_on(ahead_s: float) -> None:
    assert heard(ahead_s, n=1) == pytest.approx(ahead_s, abs=0.6)
    assert heard(ahead_s, n=4) == pytest.approx(ahead_s, abs=0.2)


def test_an_answer_that_takes_long_says_little() -> None:
    assert heard(2.0, n=1, takes_s=9.0) == 0.0


def test_a_clock_that_was_set_is_heard_anew() -> None:
    clock = ControllerClock()
    for ahead_s in (7.0, 0.0, -20.0):
        clock.hear(sdiag(T0 + ahead_s), sent_s=T0, received_s=T0 + 0.02)
        assert clock.ahead_s == pytest.approx(ahead_s, abs=0.6)


def test_every_time_is_read_by_our_clock() -> None:
    clock = ControllerClock()
    clock.hear(sdiag(T0 + 7), sent_s=T0, received_s=T0 + 0.02)
    assert clock.time_s(str(int(T0) + 60)) == pytest.approx(T0 + 53, abs=0.6)
    assert clock.time_s("N/A") is None
    assert clock.ours_s(None) is None
    queue = (RECORDED / "busy.squeue.txt").read_text()
    for theirs, ours in zip(parse.jobs(queue), parse.jobs(queue, clock.time_s), strict=True):
        assert (ours.start_s, ours.submit_s) == tuple(
            map(clock.ours_s, (theirs.start_s, theirs.submit_s))
        )
    plans = (RECORDED / "trouble.reservations.txt").read_text()
    ahead_s = clock.ahead_s
    assert [r.start_s + ahead_s for r in parse.reservations(plans, clock.time_s)] == [
        r.start_s for r in parse.reservations(plans)
    ]


def test_the_configuration_says_the_time_as_well() -> None:
    clock = ControllerClock()
    text = (RECORDED / "config.txt").read_text()
    at_s = float(text.split("data as of ")[1].split()[0])
    clock.hear(text, sent_s=at_s - 50, received_s=at_s - 49.9)
    assert clock.ahead_s == pytest.approx(50, abs=0.6)


@pytest.mark.parametrize(
    "text", ["", "sdiag output at noon (soon)", "Configuration data as of x\n"]
)
def test_who_says_no_time_changes_nothing(text: str) -> None:
    clock = ControllerClock()
    clock.hear(text, sent_s=T0, received_s=T0)
    assert clock == ControllerClock()
