"""Speed, size, training loss and GPU use of each trainer: what its curves are drawn from.

The daemon feeds it with its records and journals points of them, which ``bftrainer web --replay``
adds to the same fold. Bounded: the older a part of a curve, the fewer points it has. Pure; times
are seconds since the epoch.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from bftrainer.model.trainer import TrainerRecord, TrainerState

MOST_POINTS: Final = 120  # of a curve
NEWEST_POINTS: Final = 40  # that are kept as they are
MOST_CURVES: Final = 1000  # of trainers; those that have changed least lately go first
LEAST_S: Final = 5.0  # between two points of one size
NOTED_S: Final = 60.0  # likewise, of those that the journal keeps
# When, samples per second, workers; zeros while it does not train.
Point = tuple[float, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressCurve:
    """Speed, size, training loss and GPU use of one trainer over time."""

    trainer_id: str
    points: tuple[Point, ...]  # in order of time
    is_whole: bool = True  # False: they follow those that the reader has
    # Training loss at each point, None: not known, or not finite; (): at none of them.
    losses: tuple[float | None, ...] = ()
    # Mean use of its GPUs in percent at each point, likewise.
    gpu_uses: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesNote:
    """New points of trainers' curves, as the journal keeps them."""

    curves: tuple[ProgressCurve, ...]


class _Row(NamedTuple):
    number: int  # as ``saw`` was given it
    point: Point
    loss: float | None
    gpu_use: float | None


@dataclass(slots=True)
class _Curve:
    rows: list[_Row]
    thinned: int = 0  # number at which older points were left out
    unnoted: list[_Row] = field(default_factory=list)  # for the journal
    noted_s: float = -math.inf  # time of the last one that is, or was, among these


class ProgressCurves:
    """The fold: records in, curves out."""

    def __init__(self) -> None:
        self._curves: dict[str, _Curve] = {}  # by trainer; the one that changed last at the end
        self._unnoted: set[str] = set()  # trainers with points for the journal

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
                curve = _Curve([], number)
            rows, (at_s, rate, size) = curve.rows, _point_of(record, now_s)
            if rows:  # time does not go back
                last_s, _, _ = rows[-1].point
                at_s = max(at_s, last_s)
            point = (at_s, rate, size)
            if not _tells(rows, point):
                continue
            loss = use = None
            if size:
                loss = record.progress.loss
                if record.progress.gpu_use:
                    use = record.progress.gpu_use.use_percent
            row = _Row(number=number, point=point, loss=loss, gpu_use=use)
            self._keep_for_note(record.trainer_id, curve, row)
            self._append(record.trainer_id, curve, row)
        self._forget()

    def _append(self, trainer_id: str, curve: _Curve, row: _Row) -> None:
        rows = curve.rows
        rows.append(row)
        if len(rows) > MOST_POINTS:
            rows[:-NEWEST_POINTS] = rows[:-NEWEST_POINTS:2]
            curve.thinned = row.number
        self._curves.pop(trainer_id, None)
        self._curves[trainer_id] = curve

    def _forget(self) -> None:
        while len(self._curves) > MOST_CURVES:
            oldest = next(iter(self._curves))
            del self._curves[oldest]
            self._unnoted.discard(oldest)

    def _keep_for_note(self, trainer_id: str, curve: _Curve, row: _Row) -> None:
        """Keep the point if there is none of late of its size, and the last one of each size."""
        at_s, _, size = row.point
        is_resized = True
        if curve.rows:
            before = curve.rows[-1]
            before_s, _, size_before = before.point
            is_resized = size_before != size
            if is_resized and before_s > curve.noted_s:
                curve.unnoted.append(before)
        if is_resized or at_s - curve.noted_s >= NOTED_S:
            curve.unnoted.append(row)
            curve.noted_s = at_s
        if curve.unnoted:
            self._unnoted.add(trainer_id)

    def note(self) -> CurvesNote | None:
        """Return what is new for the journal; None: nothing."""
        news = []
        for trainer_id in sorted(self._unnoted):
            curve = self._curves[trainer_id]
            news.append(_told(trainer_id, curve.unnoted, is_whole=False))
            curve.unnoted = []
        self._unnoted = set()
        if not news:
            return None
        return CurvesNote(curves=tuple(news))

    def add(self, note: CurvesNote, number: int = 0) -> None:
        """Add what the journal has; ``number``: as for ``saw``."""
        for noted_curve in note.curves:
            trainer_id = noted_curve.trainer_id
            curve = self._curves.get(trainer_id) or _Curve([], number)
            for row in _rows_of(noted_curve, number):
                self._append(trainer_id, curve, row)
        self._forget()

    def since(self, number: int = -1) -> tuple[ProgressCurve, ...]:
        """Return what came after a number: new points, or the whole curve where it is thinner."""
        news = []
        for trainer_id, curve in reversed(self._curves.items()):
            if curve.rows[-1].number <= number:
                break  # the others changed earlier
            is_whole = curve.thinned > number
            first = 0
            if not is_whole:
                first = bisect_right(curve.rows, number, key=lambda row: row.number)
            news.append(_told(trainer_id, curve.rows[first:], is_whole=is_whole))
        return tuple(reversed(news))

    def resume(self, curves: Iterable[ProgressCurve]) -> None:
        """Go on where another fold ended."""
        self._curves = {
            curve.trainer_id: _Curve(_rows_of(curve, 0), noted_s=curve.points[-1][0])
            for curve in curves
            if curve.points
        }


def _told(trainer_id: str, rows: Sequence[_Row], *, is_whole: bool) -> ProgressCurve:
    return ProgressCurve(
        trainer_id=trainer_id,
        points=tuple(row.point for row in rows),
        is_whole=is_whole,
        losses=_column([row.loss for row in rows]),
        gpu_uses=_column([row.gpu_use for row in rows]),
    )


def _rows_of(curve: ProgressCurve, number: int) -> list[_Row]:
    return [
        _Row(number=number, point=point, loss=loss, gpu_use=use)
        for point, loss, use in zip(curve.points, losses_of(curve), gpu_uses_of(curve), strict=True)
    ]


def _column(values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return values as they are sent: none where none is known."""
    if all(value is None for value in values):
        return ()
    return tuple(values)


def losses_of(curve: ProgressCurve) -> tuple[float | None, ...]:
    """Return the training loss at each point, None where it is not known."""
    return _padded(curve.losses, len(curve.points))


def gpu_uses_of(curve: ProgressCurve) -> tuple[float | None, ...]:
    """Return the mean use of GPUs at each point in percent, None where it is not known."""
    return _padded(curve.gpu_uses, len(curve.points))


def _padded(values: Sequence[float | None], length: int) -> tuple[float | None, ...]:
    return (*values, *(None,) * length)[:length]


def joined(before: ProgressCurve | None, news: ProgressCurve) -> ProgressCurve:
    """Return a curve with what ``since`` told later of it."""
    if before is None or news.is_whole:
        return news
    return replace(
        before,
        points=(*before.points, *news.points),
        losses=_column((*losses_of(before), *losses_of(news))),
        gpu_uses=_column((*gpu_uses_of(before), *gpu_uses_of(news))),
    )


def _point_of(record: TrainerRecord, now_s: float) -> Point:
    progress = record.progress
    if record.state is not TrainerState.RUNNING or not progress.size:
        return now_s, 0.0, 0
    return progress.reported_s or now_s, progress.samples_per_s, progress.size


def _tells(rows: Sequence[_Row], point: Point) -> bool:
    """Return whether a point is worth its place."""
    at_s, _, size = point
    if not rows:
        return size > 0
    before_s, _, size_before = rows[-1].point
    return size != size_before or (size > 0 and at_s - before_s >= LEAST_S)
