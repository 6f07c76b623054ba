"""Draws one kind of picture of a study, or all of them on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.study.plots import kinds
from bftrainer.study.plots.material import Material
from bftrainer.study.plots.style import OTHERWISE, new_canvas, text

KINDS: Final[Mapping[str, Callable[[Any, Material], None]]] = {
    "history": kinds.draw_history,
    "parallel": kinds.draw_parallel,
    "importance": kinds.draw_importance,
    "rungs": kinds.draw_rungs,
}
ONE, ALL = (9.0, 5.5), (17.0, 10.5)  # inches


def draw(found: Material, kind: str | None, path: Path) -> None:
    """Write a picture.

    Args:
        found: what to draw.
        kind: one of KINDS; None: all on one page.
        path: its ending says which format.

    Raises:
        BftError: BFT-1661, no trial has reported a value yet; BFT-1662, the file cannot be written.
        TraceError: BFT-4004, matplotlib is not installed.
    """
    if not found.with_values:
        raise BftError(
            "BFT-1661",
            f"There is nothing to draw: no trial of {found.summary.name} has reported a value.",
            f"See 'bftrainer study status {found.summary.directory}'.",
            exit_code=ExitCode.NOT_FOUND,
        )
    figure = new_canvas(ONE if kind else ALL, OTHERWISE)
    summary = found.summary
    figure.suptitle(
        f"{text(summary.name)}: {len(summary.trials)} trials, rule {summary.rule['name']}, "
        f"{summary.state}, {summary.node_s / 3600.0:.3g} node-hours"
    )
    if kind:
        KINDS[kind](figure, found)
    else:
        parts = figure.subfigures(2, 2, hspace=0.05)
        for part, drawn in zip(parts.flat, KINDS.values(), strict=True):
            drawn(part, found)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as problem:  # a ValueError: the ending is unknown to matplotlib
        raise UsageError(
            "BFT-1662",
            f"The picture {path} cannot be written: {problem}.",
            "Name a file ending in .png, .svg or .pdf in a folder that you can write to.",
        ) from problem
