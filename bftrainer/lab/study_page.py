"""A study as a page: the best trial in a sentence, pictures, rungs and trials."""

from __future__ import annotations

from pathlib import Path

from bftrainer.batch.traces.text import TraceError
from bftrainer.lab import html
from bftrainer.lab.report_page import Picture
from bftrainer.lab.study_report import report_of
from bftrainer.model.errors import UsageError
from bftrainer.study.plots import OTHERWISE, Material, check_values, draw_kind, new_canvas
from bftrainer.study.trial_table import StudySummary, best_first

WIDE = (10.0, 4.6)  # inches
TITLES = {
    "history": ("Values over time", "One point per report; the orange line is the best so far."),
    "rungs": ("Trials at their rungs", "Each line is a trial: coloured where it trained."),
    "parallel": ("Parameters", "Each line is a trial; the best one is orange."),
    "importance": ("Importance", "What sets the best trials apart, by Optuna's PED-ANOVA."),
}


def write_page(
    path: Path, material: Material, summary: StudySummary, kind: str | None, command: str
) -> None:
    """Write the page.

    Args:
        path: of the page.
        material: what to draw.
        summary: of the study, in the words of its user.
        kind: the one picture that it has; None: all.
        command: repeats what is shown.

    Raises:
        BftError: BFT-1661, no trial has reported a value yet; BFT-1662, the file cannot be written.
        TraceError: BFT-4004, matplotlib is not installed.
    """
    check_values(material)
    kinds = list(TITLES)
    if kind:
        kinds = [kind]
    pictures = tuple(_picture(material, kind) for kind in kinds)
    report = report_of(summary, best_first(material.summary), pictures, command)
    try:
        html.write_page(path, report)
    except TraceError as problem:
        raise UsageError(
            "BFT-1662",
            f"The page {path} cannot be written: {problem.__cause__}.",
            "Name a file in a folder that you can write to.",
        ) from problem


def _picture(material: Material, kind: str) -> Picture:
    canvas = new_canvas(WIDE, OTHERWISE)
    draw_kind(canvas, material, kind)
    title, caption = TITLES[kind]
    drawing = html.picture(canvas, title, kind)
    return Picture(drawing=drawing, title=title, caption=caption, key=kind)
