"""Curves as text: values worked out by hand."""

from __future__ import annotations

from bftrainer.cli.sparkline import WIDTH, curve_lines, sparkline
from bftrainer.model.progress import Point, ProgressCurve, joined
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


def test_what_is_not_known_is_a_gap() -> None:
    """Known in the first half of the time and at its end: the last value holds until the next."""
    told = sparkline([(0.0, 2.0), (20.0, None), (40.0, 4.0)], from_zero=False)
    assert told == "▁" * 19 + " " * 20 + "█"
    assert sparkline([(0.0, None), (20.0, 1.0), (40.0, None)], from_zero=False) == ""


def test_lines_are_of_what_there_is() -> None:
    curve = ProgressCurve(trainer_id="t1", points=((0.0, 10.0, 1), (5.0, 20.0, 2)))
    names = [line[:13].rstrip() for line in curve_lines(curve, (Report(value=1.0),))]
    assert names == ["samples/s", "workers"]
    assert curve_lines(curve, ())[0].endswith(" 20")
    assert curve_lines(None, ()) == ()


def test_the_training_loss_is_told_apart_from_a_metric_of_the_script() -> None:
    points: tuple[Point, ...] = ((0.0, 10.0, 1), (5.0, 20.0, 2), (9.0, 20.0, 2))
    curve = ProgressCurve(trainer_id="t1", points=points, losses=(2.5, 1.25, None))
    reports = (Report(value=7.0, reported_s=1.0), Report(value=6.0, reported_s=8.0))
    told = {line[:13].rstrip(): line for line in curve_lines(curve, reports)}
    assert list(told) == ["samples/s", "workers", "training loss", "metric"]
    assert told["training loss"].endswith(" -"), "the last is not known"
    assert told["metric"].endswith(" 6")


def test_news_follow_what_is_there_or_replace_it() -> None:
    """Losses stay beside their points, also where earlier ones are not known."""
    first = ProgressCurve(trainer_id="t1", points=((0.0, 1.0, 1),))
    later = ProgressCurve(trainer_id="t1", points=((5.0, 2.0, 1),), is_whole=False, losses=(0.5,))
    last = ProgressCurve(trainer_id="t1", points=((8.0, 2.0, 1),), is_whole=False)
    whole = ProgressCurve(trainer_id="t1", points=((9.0, 3.0, 1),), losses=(0.25,))
    both = joined(joined(first, later), last)
    assert both.points == ((0.0, 1.0, 1), (5.0, 2.0, 1), (8.0, 2.0, 1))
    assert both.losses == (None, 0.5, None)
    assert joined(both, whole) == whole
    assert joined(None, later) == later
