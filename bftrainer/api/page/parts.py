"""What the page shows, as short JSON: views in, parts out. Pure.

A part that a browser has is not sent again, trainers row by row (``Sent``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bftrainer.model.progress import MOST_POINTS, ProgressCurve, gpu_uses_of, losses_of
from bftrainer.model.size_words import short_limits
from bftrainer.model.study import Report
from bftrainer.model.timeline import USES, TimelineView
from bftrainer.model.views import StatusView, TrainerView

Part = dict[str, Any]
_TRAINERS = "trainers"


def head(view: StatusView) -> Part:
    """Return the daemon's state without its trainers."""
    polling, lent = view.polling, view.lent_gpus
    gpus: Part = {}
    if lent is not None:
        gpus["gpus"] = [lent.held, lent.requested, lent.free, lent.gpus]
    requests = None
    if polling is not None:
        requests = [polling.requests_last_minute, polling.total_per_minute, polling.interval_s]
    return {
        "system": view.batch_system,
        "is_seen": view.observed == "present",
        "started_s": view.started_s,
        "nodes": [view.nodes_held, view.nodes_requested, view.nodes_idle, view.nodes_total],
        "decisions": view.decisions,
        "decision_ms": round(view.last_decision_ms, 2),
        "rescales": view.rescales,
        "given_back": view.give_backs,
        "preempted": view.preemptions,
        "requests": requests,
        "others": view.other_trainers,
        "notes": view.notes,
        **gpus,
    }


def row(view: TrainerView) -> Part:
    """Return a trainer's line of the table."""
    record, spec, progress = view.record, view.record.spec, view.record.progress
    last = record.reports[-1:]
    return {
        "id": record.trainer_id,
        "name": spec.name,
        "user": spec.user,
        "account": spec.account,
        "state": view.state,
        "is_over": record.state.is_final,
        "nodes": len(view.observed_nodes),
        "planned": len(view.planned_nodes),
        "limits": short_limits(spec),
        "done": None if view.done is None else round(view.done, 4),
        "left_s": None if view.left_s is None else round(view.left_s),
        "rate": float(f"{progress.samples_per_s:.3g}"),
        "epoch": progress.epoch,
        "step": view.step,
        "loss": _short(progress.loss),
        "has_finite_loss": progress.has_finite_loss,
        "gpu_use": str(progress.gpu_use or ""),
        "gpus": {report.node: str(report.use) for report in view.gpus},
        "metric": last[0].value if last else None,
        "why": view.why,
        "submitted_s": record.submitted_s,
        "failures": record.failures,
        "failed": record.failing.cause,
        "is_failing": bool(record.failing.count) and not record.state.is_final,
        "rescales": record.rescales,
        "study": spec.trial.study if spec.trial else "",
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def uses(found: TimelineView) -> Part:
    """Return the uses of nodes, in rows of numbers."""
    return {
        "uses": USES,
        "is_whole": found.is_whole,
        "since_s": found.since_s,
        "now_s": found.now_s,
        "nodes": found.nodes,
        "base": found.base,
        "changes": found.changes,
    }


def planned(found: TimelineView) -> list[tuple[int | str | float | None, ...]]:
    """Return what is to come, in rows of numbers: the last is of GPUs, if it is not the node."""
    rows: list[tuple[int | str | float | None, ...]] = []
    for span in found.planned:
        cells = (span.node, span.trainer_id, span.from_s, span.until_s)
        if span.gpus:
            rows.append((*cells, span.gpus))
        else:
            rows.append(cells)
    return rows


def curves(found: TimelineView) -> dict[str, Part]:
    """Return what is new of curves, in columns: times as seconds after the first."""
    return {curve.trainer_id: _columns(curve) for curve in found.curves if curve.points}


def _columns(curve: ProgressCurve) -> Part:
    from_s, _, _ = curve.points[0]
    seconds, rates, sizes = list[int](), list[float](), list[int]()
    for at_s, rate, size in curve.points:
        seconds.append(round(at_s - from_s))
        rates.append(float(f"{rate:.4g}"))
        sizes.append(size)
    return {
        "is_whole": curve.is_whole,
        "from_s": from_s,
        "at": seconds,
        "rate": rates,
        "size": sizes,
        "loss": list(map(_short, losses_of(curve))),
        "gpu": list(map(_short, gpu_uses_of(curve))),
    }


def metrics(trainers: Sequence[TrainerView]) -> dict[str, Any]:
    """Return what trainers reported, in rows of numbers."""
    points: dict[str, Any] = {}
    for view in trainers:
        if view.record.reports:
            points[view.record.trainer_id] = [
                [round(report.reported_s, 1), float(f"{report.value:.5g}")]
                for report in spread(view.record.reports)
            ]
    return points


def spread(reports: Sequence[Report]) -> Sequence[Report]:
    """Return at most so many reports as a curve has points, the last of them included."""
    step = -(-len(reports) // MOST_POINTS) or 1
    return reports[(len(reports) - 1) % step :: step]


class Sent:
    """What one browser has."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        self._rows: dict[str, Part] = {}
        self._metrics: dict[str, Any] = {}

    def news(self, parts: Part, trainers: Sequence[TrainerView], timeline: TimelineView) -> Part:
        """Return the parts, rows and curves that the browser lacks."""
        news = {name: part for name, part in parts.items() if self._parts.get(name) != part}
        self._parts.update(news)
        rows = {view.record.trainer_id: row(view) for view in trainers}
        rows_changed = [cells for key, cells in rows.items() if self._rows.get(key) != cells]
        keys_gone = [key for key in self._rows if key not in rows]
        self._rows = rows
        if rows_changed or keys_gone:
            news[_TRAINERS] = {"rows": rows_changed, "gone": keys_gone}
        if later := curves(timeline):
            news["curves"] = later
        series = metrics(trainers)
        series_changed = {
            key: points for key, points in series.items() if self._metrics.get(key) != points
        }
        if series_changed:
            news["metrics"] = series_changed
        self._metrics = series
        return news
