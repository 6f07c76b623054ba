"""Dates of LSF, most of which have no year, at the turn of the year and when clocks change."""

from __future__ import annotations

import math
import time
from calendar import timegm

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftrainer.model.hostlist import ParseError
from lsf_adapters import table
from lsf_adapters.hosts import reservations

HEAD = "RSVID     TYPE  USER  NCPUS     RSV_HOSTS    TIME_WINDOW\n"
MOMENTS = st.integers(timegm((2024, 1, 1, 0, 0, 0)), timegm((2036, 1, 1, 0, 0, 0)))


def at(*moment: int) -> float:
    return float(timegm((*moment, 0, 0, 0)[:6]))


@given(now_s=MOMENTS, off_s=st.integers(-150 * 86_400, 150 * 86_400))
def test_a_date_within_some_months_is_read_back(now_s: int, off_s: int) -> None:
    """Commands run in UTC, so that no hour is missing and none comes twice."""
    then_s = float(now_s + off_s)
    for form, step_s in (("%b %d %H:%M", 60), ("%a %b %e %H:%M:%S", 1), ("%b %d %H:%M:%S %Y", 1)):
        text = time.strftime(form, time.gmtime(then_s))
        assert table.epoch_s(text, now_s) == then_s - then_s % step_s


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        ("Dec 31 23:59", (2027, 1, 1, 0, 1), (2026, 12, 31, 23, 59)),
        ("Jan  1 00:10", (2026, 12, 31, 23, 59), (2027, 1, 1, 0, 10)),
        ("Feb 29 12:00", (2028, 3, 1), (2028, 2, 29, 12)),
        ("Feb 29 12:00", (2027, 12, 31), (2028, 2, 29, 12)),
    ],
)
def test_the_year_is_the_nearest_one(
    text: str, now: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert table.epoch_s(text, at(*now)) == at(*expected)


@pytest.mark.parametrize("text", ["Feb 29 12:00", "Feb 30 12:00", "Nov 22 24:00", "Mär 01 08:00"])
def test_what_is_no_date_of_these_years(text: str) -> None:
    with pytest.raises(ParseError):
        table.epoch_s(text, at(2026, 6, 1))


@pytest.mark.parametrize(
    ("window", "now", "begin", "end"),
    [
        ("11/22/9/0-11/22/12/0", (2026, 11, 22, 10), (2026, 11, 22, 9), (2026, 11, 22, 12)),
        ("12/30/9/0-1/5/9/0", (2026, 12, 31), (2026, 12, 30, 9), (2027, 1, 5, 9)),
        ("12/30/9/0-1/5/9/0", (2027, 1, 2), (2026, 12, 30, 9), (2027, 1, 5, 9)),
        ("1/2/9/0-1/3/9/0", (2026, 12, 31), (2027, 1, 2, 9), (2027, 1, 3, 9)),
    ],
)
def test_a_reservation_over_the_turn_of_the_year(
    window: str, now: tuple[int, ...], begin: tuple[int, ...], end: tuple[int, ...]
) -> None:
    (one,) = reservations(f"{HEAD}u#0  user  u  0/2  n1:0/2  {window}\n", at(*now))
    assert (one.start_s, one.end_s) == (at(*begin), at(*end))


def test_a_window_that_cannot_be_read_has_begun_and_does_not_end() -> None:
    now_s = at(2026, 11, 22)
    for window in ("5:18:30-5:20:30", "13/1/9/0-13/2/9/0"):
        (one,) = reservations(f"{HEAD}u#0  user  u  0/2  n1:0/2  {window}\n", now_s)
        assert (one.start_s, one.end_s) == (now_s, math.inf)
