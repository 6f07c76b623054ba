"""Formats a ``Summary`` as text and as a JSON document. Called by ``cli demo``."""

from __future__ import annotations

from typing import Any

from bftrainer.api.documents import document
from bftrainer.columns import columns
from bftrainer.demo.summary import Quantiles, Summary, TrainerResult


def as_document(summary: Summary) -> dict[str, Any]:
    """Return summary.json's content."""
    return document("demo", summary)


def as_text(summary: Summary) -> str:
    """Return the summary as a page of plain text."""
    split, ordinary = summary.node_seconds, summary.background
    rows = [
        ("node-seconds offered", f"{split.offered:.0f}", "idle as far as ordinary jobs go"),
        (
            "  harvested",
            f"{split.harvested:.0f}",
            f"a trainer trained there: U = {_ratio(summary.utilisation)}",
        ),
        (
            "  lost",
            f"{split.lost:.0f}",
            (
                f"held, not training: starting {split.lost_starting:.0f}, "
                f"pauses {split.lost_pausing:.1f}, other {split.lost_held:.0f}"
            ),
        ),
        ("  unused", f"{split.unused:.0f}", "idle and not held"),
        (
            "rescales",
            str(summary.rescales),
            (
                f"{summary.grows} up, {summary.shrinks} down; "
                f"parks {summary.parks}, resumes {summary.resumes}"
            ),
        ),
        ("pause", _quantiles(summary.pause_s, 1000.0, "ms"), "of survivors, the worst of each"),
        ("decision", _quantiles(summary.decision_ms, 1.0, "ms"), ""),
        (
            "given back",
            f"{summary.give_backs} nodes",
            f"before being asked; {summary.preemptions} preempted",
        ),
        (
            "ordinary jobs",
            f"{ordinary.jobs} started",
            f"delay {_quantiles(ordinary.delay_s, 1.0, 's')}",
        ),
    ]
    return "\n".join(
        (
            f"{summary.nodes} nodes for {summary.live_s:.0f} s on {summary.batch_system}",
            "",
            *(f"{name:<22}{value:<34}{note}".rstrip() for name, value, note in rows),
            "",
            f"delay: {ordinary.method}",
            "",
            columns(
                ("TRAINER", "STATE", ">EPOCHS", ">NODE-S", ">RESCALES", ">PARKS", ">ACCURACY",
                 ">FIXED SIZE", ">DIFFERENCE"),
                [_trainer_row(trainer) for trainer in summary.trainers],
            ),
        )
    )  # fmt: skip


def subtitle(summary: Summary) -> str:
    """Return the line under the picture's title."""
    split = summary.node_seconds
    return (
        f"U = {_ratio(summary.utilisation)} ({split.harvested:.0f} of {split.offered:.0f} "
        f"node-seconds offered)   ·   {summary.rescales} rescales, pause "
        f"{_quantiles(summary.pause_s, 1000.0, 'ms')}   ·   {summary.give_backs} given back, "
        f"{summary.preemptions} preempted"
    )


def _trainer_row(trainer: TrainerResult) -> tuple[str, ...]:
    reached, fixed = trainer.accuracy, trainer.fixed_accuracy
    difference = "-"
    if reached is not None and fixed is not None:
        difference = f"{100.0 * (reached - fixed):+.1f}"
    return (
        trainer.name,
        trainer.state,
        str(trainer.epochs),
        f"{trainer.node_seconds:.0f}",
        str(trainer.rescales),
        str(trainer.parks),
        _percent(reached),
        _percent(fixed),
        difference,
    )


def _quantiles(found: Quantiles, scale: float, unit: str) -> str:
    if found.p50 is None or found.p95 is None or found.max is None:
        return "-"
    digits = 0 if unit == "ms" and found.p50 * scale >= 10 else 1
    p50, p95, greatest = (
        f"{value * scale:.{digits}f}" for value in (found.p50, found.p95, found.max)
    )
    return f"p50 {p50}, p95 {p95}, max {greatest} {unit}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
