"""A study as a report: the best trial in a sentence, how far it is, its rungs and trials. Pure.

``bftrainer study status`` prints it, ``study plot --out FILE.html`` adds pictures.
"""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.lab.report_page import Picture, ReportPage, Section
from bftrainer.study.trial_table import (
    StudySummary,
    TrialRow,
    answer,
    facts_table,
    rung_table,
    trial_table,
)


def report_of(
    summary: StudySummary,
    trials: Sequence[TrialRow],
    pictures: tuple[Picture, ...] = (),
    command: str = "",
) -> ReportPage:
    """Return the report.

    Args:
        summary: of the study.
        trials: those that are shown, best first.
        pictures: of the page.
        command: repeats what is shown.
    """
    left_out = len(summary.trials) - len(trials)
    sections = [Section(pictures=pictures, tables=(facts_table(summary),))]
    if summary.rungs:
        sections.append(Section(title="Rungs", tables=(rung_table(summary),)))
    notes: tuple[str, ...] = ()
    if left_out:
        notes = (f"{left_out} more are over; see --all",)
    trials_table = trial_table(summary, trials)
    sections.append(Section(title="Trials, best first", tables=(trials_table,), items=notes))
    return ReportPage(
        title=f"Study {summary.name}",
        answers=(answer(summary),),
        sections=tuple(sections),
        command=command,
    )
