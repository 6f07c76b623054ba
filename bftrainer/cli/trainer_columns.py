"""The columns of ``bftrainer status -o`` and ``bftrainer top``, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from bftrainer.cli.common import clock, duration
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerState
from bftrainer.model.views import TrainerView

# name -> (header, > aligns right; what it shows at a time)
COLUMNS: dict[str, tuple[str, Callable[[TrainerView, float], str]]] = {
    "id": ("ID", lambda view, _: view.record.trainer_id),
    "name": ("NAME", lambda view, _: view.record.spec.name),
    "user": ("USER", lambda view, _: view.record.spec.user),
    "state": ("STATE", lambda view, _: state_of(view)),
    "nodes": (">NODES", lambda view, _: str(len(view.observed_nodes))),
    "plan": (">PLAN", lambda view, _: str(len(view.planned_nodes))),
    "limits": ("LIMITS", lambda view, _: f"{view.record.spec.n_min}:{view.record.spec.n_max}"),
    "epoch": (">EPOCH", lambda view, _: str(view.record.progress.epoch)),
    "step": (">STEP", lambda view, _: str(view.record.progress.step)),
    "samples": (">SAMPLES", lambda view, _: str(view.record.progress.samples)),
    "rate": (">SAMPLES/S", lambda view, _: _rate(view.record)),
    "done": (">DONE", lambda view, _: _percent(done(view.record))),
    "left": (">LEFT", lambda view, _: duration(left_s(view.record))),
    "metric": (">METRIC", lambda view, _: metric(view.record)),
    "rescales": (">RESCALES", lambda view, _: str(view.record.rescales)),
    "failures": (">FAILURES", lambda view, _: str(view.record.failures)),
    "weight": (">WEIGHT", lambda view, _: f"{view.record.spec.weight:g}"),
    "age": (">AGE", lambda view, now_s: duration(_age_s(view.record, now_s))),
    "submitted": ("SUBMITTED", lambda view, _: clock(view.record.submitted_s)),
    "started": ("STARTED", lambda view, _: clock(view.record.started_s)),
    "ended": ("ENDED", lambda view, _: clock(view.record.ended_s)),
    "nodelist": ("NODELIST", lambda view, _: ",".join(view.observed_nodes) or "-"),
    "checkpoints": ("CHECKPOINTS", lambda view, _: view.record.spec.checkpoint_dir),
    "reason": ("REASON", lambda view, _: reason_of(view)),
}
USUAL = (
    "id", "name", "user", "state", "nodes", "plan", "limits",
    "epoch", "step", "rate", "metric", "left", "age", "reason",
)  # fmt: skip


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the names in ``id,state``.

    Raises:
        UsageError: BFT-1048, there is no such column.
    """
    names = tuple(part.strip().lower() for part in text.split(","))
    if wrong := [name for name in names if name not in (*COLUMNS, "help")]:
        raise UsageError(
            "BFT-1048",
            f"There is no column {wrong[0][:40]!r}.",
            f"Choose from: {', '.join(COLUMNS)}.",
        )
    return names


def list_columns() -> None:
    """Print the names of all columns."""
    for name in COLUMNS:
        click.echo(name)


def headers_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the headers of columns."""
    return tuple(COLUMNS[name][0] for name in names)


def row_of(view: TrainerView, now_s: float, names: Sequence[str] = USUAL) -> tuple[str, ...]:
    """Return a trainer's cells."""
    return tuple(COLUMNS[name][1](view, now_s) for name in names)


def state_of(view: TrainerView) -> str:
    """Return its state; or that it is held, waits at its rung, or may train on unheard."""
    record = view.record
    if record.state.is_final:
        return str(record.state)
    if view.unheard_nodes:
        return "unheard"
    if record.held_s is not None:
        return "held"
    return "at rung" if record.rung_s is not None else str(record.state)


def reason_of(view: TrainerView) -> str:
    """Say why it does not train, or what troubles it."""
    return view.trouble or view.waits or view.record.reason


def done(record: TrainerRecord) -> float | None:
    """Return which part of its training is done, from 0 to 1; None: its length is not known."""
    spec, progress = record.spec, record.progress
    if record.state is TrainerState.FINISHED:
        return 1.0
    if total := progress.total or spec.samples:
        return min(1.0, progress.samples / total)
    return min(1.0, progress.epoch / spec.epochs) if spec.epochs else None


def left_s(record: TrainerRecord) -> float | None:
    """Return how long it still trains at its present rate; None: not known, or it does not."""
    total, progress = record.progress.total or record.spec.samples, record.progress
    if not total or not progress.samples_per_s or record.state.is_final:
        return None
    return max(0.0, (total - progress.samples) / progress.samples_per_s)


def metric(record: TrainerRecord) -> str:
    """Return what its script reported last (``run.report``)."""
    return f"{record.reports[-1].value:.4g}" if record.reports else "-"


def _rate(record: TrainerRecord) -> str:
    rate = record.progress.samples_per_s
    return f"{rate:.4g}" if rate else "-"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100.0 * part:.1f}%"


def _age_s(record: TrainerRecord, now_s: float) -> float:
    return (record.ended_s or now_s) - record.submitted_s
