"""Curves as one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bftrainer.model.progress import Point, ProgressCurve
from bftrainer.model.study import Report

WIDTH: Final = 40  # characters
_BARS: Final = "▁▂▃▄▅▆▇█"


def sparkline(points: Sequence[tuple[float, float]], *, from_zero: bool) -> str:
    """Return (time, value) as bars; each is the last value until its time, so sizes are steps.

    ``from_zero``: the lowest bar is 0, not the least value.
    """
    if len(points) < 2:
        return ""
    begin_s, end_s = points[0][0], points[-1][0]
    values = [value for _, value in points]
    low, high = (0.0 if from_zero else min(values)), max(values)
    bars, place = [], 0
    for column in range(WIDTH):
        at_s = begin_s + (end_s - begin_s) * (column + 1) / WIDTH
        while place + 1 < len(points) and (points[place + 1][0] <= at_s or column == WIDTH - 1):
            place += 1
        part = (values[place] - low) / (high - low) if high > low else 0.5
        bars.append(_BARS[min(len(_BARS) - 1, int(part * len(_BARS)))])
    return "".join(bars)


def curve_lines(points: Sequence[Point], reports: Sequence[Report]) -> tuple[str, ...]:
    """Return a line each for speed, size and metric, where there is a curve."""
    rows = (
        ("samples/s", [(at_s, rate) for at_s, rate, _ in points], True),
        ("workers", [(at_s, float(size)) for at_s, _, size in points], True),
        ("metric", [(one.reported_s, one.value) for one in reports], False),
    )
    return tuple(
        f"{name:<9} {bars} {told[-1][1]:.4g}"
        for name, told, from_zero in rows
        if (bars := sparkline(told, from_zero=from_zero))
    )


def joined(before: dict[str, tuple[Point, ...]], news: Sequence[ProgressCurve]) -> None:
    """Add what is new of curves to those that are there."""
    for curve in news:
        had = () if curve.is_whole else before.get(curve.trainer_id, ())
        before[curve.trainer_id] = (*had, *curve.points)
