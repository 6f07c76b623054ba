"""A study as a page: the best trial in a sentence, pictures, rungs and trials."""

from __future__ import annotations

from pathlib import Path

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.batch.traces.text import TraceError
from bftrainer.lab import html
from bftrainer.model.errors import UsageError
from bftrainer.model.quantities import quantity
from bftrainer.study.plots import KINDS, OTHERWISE, Material, check_values, new_canvas
from bftrainer.study.trial_table import StudySummary, TrialRow, answer, parameters_line

WIDE = (10.0, 4.6)  # inches
TITLES = {
    "history": ("Values over time", "One point per report; the orange line is the best so far."),
    "rungs": ("Trials at their rungs", "Each line is a trial: coloured where it trained."),
    "parallel": ("Parameters", "Each line is a trial; the best one is orange."),
    "importance": ("Importance", "What sets the best trials apart, by Optuna's PED-ANOVA."),
}


def write_page(
    path: Path, found: Material, summary: StudySummary, kind: str | None, command: str
) -> None:
    """Write the page.

    Args:
        path: of the page.
        found: what to draw.
        summary: of the study, in the words of its user.
        kind: the one picture that it has; None: all.
        command: repeats what is shown.

    Raises:
        BftError: BFT-1661, no trial has reported a value yet; BFT-1662, the file cannot be written.
        TraceError: BFT-4004, matplotlib is not installed.
    """
    check_values(found)
    pictures = tuple(_picture(found, one) for one in ([kind] if kind else TITLES))
    report = _report(found, summary, pictures, command)
    try:
        html.write_page(path, report)
    except TraceError as problem:
        raise UsageError(
            "BFT-1662",
            f"The page {path} cannot be written: {problem.__cause__}.",
            "Name a file in a folder that you can write to.",
        ) from problem


def _report(
    found: Material, summary: StudySummary, pictures: tuple[html.Picture, ...], command: str
) -> html.ReportPage:
    settings = ", ".join(f"{k} {v}" for k, v in summary.rule.items() if k != "name")
    return html.ReportPage(
        title=f"Study {summary.name}",
        answer=answer(summary),
        more=(
            (
                f"Rule {summary.rule.get('name')}: {settings}; {summary.active} trials train, "
                f"{summary.waiting} wait, {summary.over} are over; "
                f"{quantity(summary.node_s / HOUR_S)} node-hours."
            ),
        ),
        sections=(
            html.Section(pictures=pictures),
            html.Section(
                title="Rungs",
                tables=(
                    html.PageTable(
                        headers=(f">{summary.unit.upper()}", ">ACTIVE", ">WAITING", ">OVER"),
                        rows=tuple(
                            (str(rung.budget), str(rung.active), str(rung.waiting), str(rung.over))
                            for rung in summary.rungs
                        ),
                    ),
                ),
            ),
            html.Section(
                title="Trials, best first",
                tables=(
                    html.PageTable(
                        headers=(
                            ">TRIAL", "STAGE", f">{summary.metric.upper()}", ">AT", ">BUDGET",
                            ">NODE-HOURS", "PARAMETERS",
                        ),
                        rows=tuple(_cells(row) for row in _ordered(found)),
                    ),
                ),
            ),
        ),
        command=command,
    )  # fmt: skip


def _picture(found: Material, kind: str) -> html.Picture:
    canvas = new_canvas(WIDE, OTHERWISE)
    KINDS[kind](canvas, found)
    title, caption = TITLES[kind]
    drawing = html.picture(canvas, title, kind)
    return html.Picture(drawing=drawing, title=title, caption=caption, key=kind)


def _ordered(found: Material) -> list[TrialRow]:
    """Return the trials by their places: those that have a value, then the others."""
    best_first = found.with_values[::-1]
    placed = {row.number for row in best_first}
    return [*best_first, *(row for row in found.summary.trials if row.number not in placed)]


def _cells(row: TrialRow) -> tuple[str, ...]:
    return (
        str(row.number),
        row.stage,
        "-" if row.value is None else quantity(row.value, 6),
        str(row.units),
        str(row.budget),
        quantity(row.node_s / HOUR_S),
        parameters_line(row.parameters),
    )
