"""Backfill's view of the future in the simulated Slurm, against cases worked out by hand."""

from __future__ import annotations

import math

from bftrainer.lab.site.timeline import Timeline, lowest, neighbours, positions

EVERY = 0b1111


def test_the_lowest_nodes_are_taken() -> None:
    assert lowest(0b101100, 2) == 0b001100
    assert lowest(0b101100, 9) == 0b101100
    assert lowest(0b101100, 0) == 0
    assert list(positions(0b101100)) == [2, 3, 5]


def test_the_shortest_row_of_neighbours_that_is_long_enough() -> None:
    assert neighbours(0b0_1110_1101_1, 2) == 0b0_0000_0001_1  # rows of 2, 2 and 3
    assert neighbours(0b1110_1011, 3) == 0b1110_0000
    assert neighbours(0b1110_1011, 4) == 0b1110_1000  # none is long enough: the longest, whole


def test_who_fits_now_starts_now() -> None:
    line = Timeline(0.0, 0b0011, [(600.0, 0b1100)], 60.0)
    assert line.earliest(2, 3600.0, EVERY) == (0.0, 0b0011)
    assert line.earliest(1, 60.0, 0b0010) == (0.0, 0b0010)
    assert line.earliest(5, 60.0, EVERY) is None


def test_who_does_not_waits_for_the_limits_of_who_runs() -> None:
    line = Timeline(0.0, 0b0011, [(600.0, 0b1100)], 60.0)
    assert line.earliest(3, 60.0, EVERY) == (600.0, 0b1111)


def test_ends_that_are_close_are_one() -> None:
    """First span 30 s after the whole 30 s that follows the first end, then 60 s, then 120 s."""
    ends = [(100.0, 0b0001), (149.0, 0b0010), (151.0, 0b0100), (209.0, 0b1000)]
    line = Timeline(0.0, 0, ends, 60.0)
    assert line.earliest(1, 60.0, EVERY) == (149.0, 0b0011)
    assert line.earliest(3, 60.0, EVERY) == (151.0, 0b0111)
    assert line.earliest(4, 60.0, EVERY) == (209.0, 0b1111)


def test_an_end_that_is_overdue_is_expected_in_a_second() -> None:
    assert Timeline(50.0, 0, [(20.0, 0b1)], 60.0).earliest(1, 60.0, EVERY) == (51.0, 0b1)


def test_a_plan_closes_its_nodes_in_slots() -> None:
    line = Timeline(0.0, EVERY, [], 60.0)
    line.close(630.0, 1000.0, 0b0011)  # slots from 600 to 960
    assert line.earliest(4, 599.0, EVERY) == (0.0, EVERY)
    assert line.earliest(4, 600.0, EVERY) == (960.0, EVERY)  # its limit reaches into the slot
    assert line.earliest(2, 600.0, EVERY) == (0.0, 0b1100)
    assert line.open_now(599.0) == EVERY
    assert line.open_now(600.0) == 0b1100


def test_a_hole_between_two_plans_is_used() -> None:
    line = Timeline(0.0, 0b1, [], 60.0)
    line.close(0.0, 120.0, 0b1)
    line.close(300.0, 600.0, 0b1)
    assert line.earliest(1, 179.0, 0b1) == (120.0, 0b1)
    assert line.earliest(1, 180.0, 0b1) == (600.0, 0b1)


def test_who_starts_now_is_gone_at_its_limit() -> None:
    line = Timeline(0.0, 0b11, [], 60.0)
    line.start(900.0, 0b01)
    assert line.earliest(2, 60.0, 0b11) == (900.0, 0b11)
    line = Timeline(0.0, 0b11, [(1000.0, 0b100)], 60.0)
    line.start(900.0, 0b01)  # ends together with who runs
    assert line.earliest(2, 60.0, 0b11) == (1000.0, 0b11)
    line.cut(0.0, math.inf, 0b10)
    assert line.earliest(2, 60.0, 0b11) is None


def test_what_fits_now_may_not_fit_a_moment_later() -> None:
    line = Timeline(0.0, 0b1, [], 60.0)
    line.close(600.0, 900.0, 0b1)
    line.advance(10.0)
    assert line.earliest(1, 580.0, 0b1) == (10.0, 0b1)
    assert line.earliest(1, 595.0, 0b1) == (900.0, 0b1)
