"""How fast each trainer was, and on how many workers: what its curves are drawn from.

The daemon feeds it with its records, ``bftrainer web --replay`` with those of a journal. Bounded:
the older a part of a curve, the fewer points it has. Pure; times are seconds since the epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bftrainer.model.trainer import TrainerRecord, TrainerState

MOST_POINTS: Final = 120  # of a curve
NEWEST_POINTS: Final = 40  # that are kept as they are
MOST_CURVES: Final = 1000  # of trainers; those that have changed least lately go first
LEAST_S: Final = 5.0  # between two points of one size
# When, samples per second, workers; zeros while it does not train.
Point = tuple[float, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressCurve:
    """Speed and size of one trainer over time."""

    trainer_id: str
    points: tuple[Point, ...]  # in order of time
    is_whole: bool = True  # False: they follow those that the reader has


@dataclass(slots=True)
class _Curve:
    points: list[Point]
    numbers: list[int]  # of each point, as ``saw`` was given them
    thinned: int = 0  # number at which older points were left out


class ProgressCurves:
    """The fold: records in, curves out."""

    def __init__(self) -> None:
        self._curves: dict[str, _Curve] = {}  # by trainer; the one that changed last at the end

    def saw(self, now_s: float, records: Iterable[TrainerRecord], number: int = 0) -> None:
        """Add what is new in the records of trainers.

        Args:
            now_s: when they are so.
            records: those that may have changed.
            number: what ``since`` is asked with later; it grows.
        """
        for record in records:
            curve = self._curves.get(record.trainer_id)
            if curve is None:
                if record.state is not TrainerState.RUNNING:
                    continue  # of thousands that have ended
                curve = _Curve([], [], number)
            at_s, rate, size = _point_of(record, now_s)
            point = (max(at_s, curve.points[-1][0]) if curve.points else at_s, rate, size)
            if not _tells(curve.points, point):
                continue
            curve.points.append(point)
            curve.numbers.append(number)
            if len(curve.points) > MOST_POINTS:
                curve.points[:-NEWEST_POINTS] = curve.points[:-NEWEST_POINTS:2]
                curve.numbers[:-NEWEST_POINTS] = curve.numbers[:-NEWEST_POINTS:2]
                curve.thinned = number
            self._curves.pop(record.trainer_id, None)
            self._curves[record.trainer_id] = curve
        while len(self._curves) > MOST_CURVES:
            del self._curves[next(iter(self._curves))]

    def since(self, number: int = -1) -> tuple[ProgressCurve, ...]:
        """Return what came after a number: new points, or the whole curve where it is thinner."""
        news = []
        for trainer_id, curve in reversed(self._curves.items()):
            if curve.numbers[-1] <= number:
                break  # the others changed earlier
            is_whole = curve.thinned > number
            first = 0 if is_whole else bisect_right(curve.numbers, number)
            points = tuple(curve.points[first:])
            news.append(ProgressCurve(trainer_id=trainer_id, points=points, is_whole=is_whole))
        return tuple(reversed(news))

    def resume(self, curves: Iterable[ProgressCurve]) -> None:
        """Go on where another fold ended."""
        self._curves = {
            one.trainer_id: _Curve(list(one.points), [0] * len(one.points))
            for one in curves
            if one.points
        }


def _point_of(record: TrainerRecord, now_s: float) -> Point:
    progress = record.progress
    if record.state is not TrainerState.RUNNING or not progress.size:
        return now_s, 0.0, 0
    return progress.reported_s or now_s, progress.samples_per_s, progress.size


def _tells(points: list[Point], point: Point) -> bool:
    """Return whether a point is worth its place."""
    if not points:
        return point[2] > 0
    at_s, _, size = points[-1]
    return point[2] != size or (size > 0 and point[0] - at_s >= LEAST_S)
