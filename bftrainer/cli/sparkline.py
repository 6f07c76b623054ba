"""Curves as one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bftrainer.model.columns import level_line
from bftrainer.model.progress import ProgressCurve, gpu_uses_of, losses_of
from bftrainer.model.quantities import quantity
from bftrainer.model.study import Report

WIDTH: Final = 40  # characters
_GAP: Final = " "
_NAMED: Final = 13  # characters of the longest name


def sparkline(points: Sequence[tuple[float, float | None]], *, from_zero: bool) -> str:
    """Return (time, value) as bars; each is the last value until its time, so sizes are steps.

    Where a value is None, it is not known, there is a gap. ``from_zero``: the lowest bar is 0, not
    the least value.
    """
    values = [value for _, value in points if value is not None]
    if len(values) < 2:
        return ""
    times_s = [at_s for at_s, _ in points]
    begin_s, end_s = times_s[0], times_s[-1]
    low, high = min(values), max(values)
    if from_zero:
        low = 0.0
    bars, place = [], 0
    for column in range(WIDTH):
        at_s = begin_s + (end_s - begin_s) * (column + 1) / WIDTH
        while place + 1 < len(points) and (times_s[place + 1] <= at_s or column == WIDTH - 1):
            place += 1
        _, value = points[place]
        bars.append(_bar(value, low, high))
    return "".join(bars)


def _bar(value: float | None, low: float, high: float) -> str:
    if value is None:
        return _GAP
    if high <= low:
        return level_line([0.5])
    return level_line([(value - low) / (high - low)])


def curve_lines(curve: ProgressCurve | None, reports: Sequence[Report]) -> tuple[str, ...]:
    """Return a line each for speed, size, GPU use, training loss and metric, if it has a curve."""
    rows: list[tuple[str, Sequence[tuple[float, float | None]], bool]] = []
    if curve is not None and curve.points:
        times_s, rates, sizes = zip(*curve.points, strict=True)
        rows += [
            ("samples/s", list(zip(times_s, rates, strict=True)), True),
            ("workers", list(zip(times_s, map(float, sizes), strict=True)), True),
            ("GPU use, %", list(zip(times_s, gpu_uses_of(curve), strict=True)), True),
            ("training loss", list(zip(times_s, losses_of(curve), strict=True)), False),
        ]
    rows.append(("metric", [(report.reported_s, report.value) for report in reports], False))
    lines = list[str]()
    for name, points, from_zero in rows:
        if bars := sparkline(points, from_zero=from_zero):
            lines.append(f"{name:<{_NAMED}} {bars} {_last(points)}")
    return tuple(lines)


def _last(points: Sequence[tuple[float, float | None]]) -> str:
    _, value = points[-1]
    return "-" if value is None else quantity(value, 4)
