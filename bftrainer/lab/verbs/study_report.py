"""``bftrainer study status`` and ``plot``: a study as a report of the lab, and as pictures.

Both say the same under the same headings: the report is made once (``lab.study_report``).
"""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path

import click

from bftrainer.api.documents import schema
from bftrainer.cli.options import FILE, JSON, SOCKET, option, verb
from bftrainer.cli.output import answer, print_json, print_lines
from bftrainer.lab.study_report import report_of
from bftrainer.lab.verbs.report_text import print_report
from bftrainer.model.errors import UsageError
from bftrainer.study import trial_table
from bftrainer.study.directory import unreadable
from bftrainer.study.trial_table import SUMMARY_SCHEMA, StudySummary
from bftrainer.study.verbs.lookup import STUDY, find_path, find_study, summary_of

MAX_ENDED = 20  # trials that are shown of those that are over
ENDINGS = (".html", ".png", ".svg", ".pdf")
KINDS = ("history", "parallel", "importance", "rungs")


@verb(
    *STUDY,
    option("--all", "Show every trial that is over, too.", name="show_all"),
    JSON,
    SOCKET,
    example="bftrainer study status digits",
)
def status(study_name: str, socket_name: str | None, *, show_all: bool, as_json: bool) -> None:
    """Show STUDY (its name, directory or YAML file), whether or not its loop runs."""
    summary = summary_of(find_path(study_name, socket_name), socket_name)
    answer(summary, SUMMARY_SCHEMA, partial(_print, show_all=show_all), as_json=as_json)


def _print(summary: StudySummary, *, show_all: bool) -> None:
    rows = trial_table.best_first(summary)
    if not show_all:
        hidden = _ended_early(summary)
        rows = [row for row in rows if row.number not in hidden]
    print_report(report_of(summary, rows))


def _ended_early(summary: StudySummary) -> frozenset[int]:
    """Return the trials that were over before the last ``MAX_ENDED``, but not the best."""
    ended = [row for row in summary.trials if row.ended_s is not None]
    ended.sort(key=lambda row: row.ended_s or 0.0)
    numbers = [row.number for row in ended[:-MAX_ENDED]]
    return frozenset(numbers) - {summary.best}


@verb(
    *STUDY,
    option("--kind", "One picture.  [default: all on one page]", click.Choice(KINDS)),
    option("--out FILE", "A .html, .png, .svg or .pdf.  [default: NAME.png, NAME-KIND.png]", FILE),
    JSON, SOCKET,
    example="bftrainer study plot digits --kind rungs --out rungs.pdf",
)  # fmt: skip
def plot(
    study_name: str, kind: str | None, out: Path | None, socket_name: str | None, *, as_json: bool
) -> None:
    """Draw STUDY: values over time, parameters, their importance, rungs over time.

    A page has the best trial in a sentence, the pictures, and all trials.
    """
    from bftrainer.study.directory import read_events  # noqa: PLC0415 - for this verb alone
    from bftrainer.study.plots import draw, material  # noqa: PLC0415

    if out is not None and out.suffix.lower() not in ENDINGS:
        raise UsageError(
            "BFT-1662",
            f"The picture {out} cannot be written: its name says no format that is known here.",
            f"Let it end in one of {', '.join(ENDINGS)}.",
        )
    study = find_study(study_name, socket_name)
    summary = summary_of(study.path, socket_name)
    file = out or Path(f"{'-'.join(filter(None, (summary.name, kind)))}.png")
    events = read_events(study.events)
    try:
        contents = material(summary, study.document.parameters, events)
    except (LookupError, TypeError, ValueError) as problem:
        next_step = "Remove it; only pictures need it."
        raise unreadable(str(study.events), problem, next_step) from problem
    if file.suffix.lower() == ".html":
        from bftrainer.lab.study_page import write_page  # noqa: PLC0415 - for pages alone

        write_page(file, contents, summary, kind, shlex.join(["bftrainer", *sys.argv[1:]]))
    else:
        draw(contents, kind, file)
    if as_json:
        kinds = list(KINDS)
        if kind:
            kinds = [kind]
        print_json({"schema": schema("plot"), "file": str(file.absolute()), "kinds": kinds})
    else:
        print_lines(f"wrote {file}")
