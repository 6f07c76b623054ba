"""Curves as text: values worked out by hand."""

from __future__ import annotations

from bftrainer.cli.sparkline import WIDTH, curve_lines, joined, sparkline
from bftrainer.model.progress import Point, ProgressCurve
from bftrainer.model.study import Report


def test_sizes_are_steps_in_time() -> None:
    """One worker for three quarters of the time, then eight: 30 columns low, the rest high."""
    told = sparkline([(0.0, 1.0), (30.0, 8.0), (40.0, 8.0)], from_zero=True)
    assert len(told) == WIDTH == 40
    assert told == "▂" * 29 + "█" * 11


def test_a_metric_is_drawn_between_its_least_and_its_most() -> None:
    told = sparkline([(0.0, 5.0), (20.0, 6.0), (40.0, 5.0)], from_zero=False)
    assert (told[0], told[30], told[-1]) == ("▁", "█", "▁")
    assert sparkline([(0.0, 5.0), (1.0, 5.0)], from_zero=False) == "▅" * WIDTH
    assert sparkline([(0.0, 5.0)], from_zero=False) == ""


def test_lines_are_of_what_there_is() -> None:
    points = ((0.0, 10.0, 1), (5.0, 20.0, 2))
    names = [line.split()[0] for line in curve_lines(points, (Report(value=1.0),))]
    assert names == ["samples/s", "workers"]
    assert curve_lines(points, ())[0].endswith(" 20")


def test_news_follow_what_is_there_or_replace_it() -> None:
    curves: dict[str, tuple[Point, ...]] = {"t1": ((0.0, 1.0, 1),)}
    later: tuple[Point, ...] = ((5.0, 2.0, 1),)
    whole: tuple[Point, ...] = ((9.0, 3.0, 1),)
    joined(curves, [ProgressCurve(trainer_id="t1", points=later, is_whole=False)])
    assert curves["t1"] == ((0.0, 1.0, 1), (5.0, 2.0, 1))
    joined(curves, [ProgressCurve(trainer_id="t1", points=whole)])
    assert curves["t1"] == whole
