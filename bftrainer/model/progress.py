"""How fast each trainer was, and on how many workers: what its curves are drawn from.

The daemon feeds it with its records, ``bftrainer web --replay`` with those of a journal. Bounded:
the older a part of a curve, the fewer points it has. Pure; times are seconds since the epoch.
"""

from __future__ import annotations

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


class ProgressCurves:
    """The fold: records in, curves out."""

    def __init__(self) -> None:
        # By trainer, the one that changed last at the end: with the number of its last change.
        self._curves: dict[str, tuple[int, list[Point]]] = {}

    def saw(self, now_s: float, records: Iterable[TrainerRecord], number: int = 0) -> None:
        """Add what is new in the records of trainers.

        Args:
            now_s: when they are so.
            records: those that may have changed.
            number: what ``since`` is asked with later.
        """
        for record in records:
            _, points = self._curves.get(record.trainer_id, (0, []))
            at_s, rate, size = _point_of(record, now_s)
            point = (max(at_s, points[-1][0]) if points else at_s, rate, size)
            if not _tells(points, point):
                continue
            points.append(point)
            while len(points) > MOST_POINTS:
                points[:-NEWEST_POINTS] = points[:-NEWEST_POINTS:2]
            self._curves.pop(record.trainer_id, None)
            self._curves[record.trainer_id] = number, points
        while len(self._curves) > MOST_CURVES:
            del self._curves[next(iter(self._curves))]

    def since(self, number: int = -1) -> tuple[ProgressCurve, ...]:
        """Return the curves that changed after a number; all by default."""
        return tuple(
            ProgressCurve(trainer_id=trainer_id, points=tuple(points))
            for trainer_id, (changed, points) in self._curves.items()
            if changed > number
        )

    def resume(self, curves: Iterable[ProgressCurve]) -> None:
        """Go on where another fold ended."""
        self._curves = {one.trainer_id: (0, list(one.points)) for one in curves}


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
