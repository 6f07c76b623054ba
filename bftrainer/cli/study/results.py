"""``bftrainer study status``, ``best``, ``export`` and ``plot``: the results of a study.

The ``bftrainer submit`` line of ``best`` has every option of the study's trainers that is not the
default, except those on when they were to start.
"""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from pathlib import Path

import click

from bftrainer.api.documents import document, schema
from bftrainer.cli.options import FILE, JSON, SOCKET, option, verb
from bftrainer.cli.output import (
    answer,
    print_as_it_is,
    print_csv,
    print_json,
    print_lines,
    print_pairs,
)
from bftrainer.cli.report_text import print_report
from bftrainer.cli.study.lookup import STUDY, find_path, find_study, summary_of
from bftrainer.lab.study_report import report_of
from bftrainer.model.declaration import InStudy, declarations, defaults
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.quantities import quantity
from bftrainer.model.study import PARAMETERS
from bftrainer.model.trainer import CheckpointContract, TrainerSpec
from bftrainer.study import trial_table
from bftrainer.study.directory import StudyDirectory, read_directory, unreadable
from bftrainer.study.trial_table import SUMMARY_SCHEMA, StudySummary, TrialRow

MAX_ENDED = 20  # trials that are shown of those that are over
ENDINGS = (".html", ".png", ".svg", ".pdf")
KINDS = ("history", "parallel", "importance", "rungs")
_COLUMNS = (
    *("number", "stage", "value", "units", "budget", "node_s", "bracket", "parent", "attempt"),
    *("began_s", "ended_s", "reason"),
)


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


def command_of(study: StudyDirectory, row: TrialRow) -> str:
    """Return the command line that trains a trial in full."""
    from bftrainer.study.actions import filled  # noqa: PLC0415 - slow to import

    base, document, unit = study.base, study.document, study.document.unit
    words = ["bftrainer", "submit", "-J", f"{document.name}-best"]
    words += [*base.size_words, f"--{unit}", str(document.rule_with().most)]
    words += ["--runtime", base.runtime, "--workers-per-node", str(base.workers_per_node)]
    words += ["--chdir", base.cwd]
    for name in ("curve", "preamble"):  # trainers have what those files say
        if document.submit.get(name):
            words += [f"--{name}", str(document.submit[name])]
    words += _repeated(base)
    if base.batch is not None:
        words += ["--batch", f"{base.batch.least}:{base.batch.most}"]
        words += ["--batch-per-worker", str(base.batch.per_worker), "--lr-rule", base.batch.lr_rule]
    words += _repeated(base.contract or CheckpointContract())
    for name, value in (*base.environment, (PARAMETERS, json.dumps(dict(row.parameters)))):
        words += ["--export", f"{name}={value}"]
    return shlex.join([*words, base.script, *filled(base.args, row.parameters)])


def _repeated(record: TrainerSpec | CheckpointContract) -> list[str]:
    """Return the options that the best trial's trainer has, too, unless they are as by default."""
    cls: type = type(record)
    words: list[str] = []
    for name, declaration in declarations(cls).items():
        if declaration.in_study is not InStudy.REPEATED or not declaration.options:
            continue
        value = getattr(record, name)
        if value in (None, "", defaults(cls).get(name)):
            continue
        words.append(declaration.options[0].flag)
        if value is not True:
            words.append(str(value))
    return words


@verb(
    *STUDY,
    option("--script", "Print the command that trains it fully.", name="as_script"),
    JSON, SOCKET,
    example="bftrainer study best digits --script",
)  # fmt: skip
def best(study_name: str, socket_name: str | None, *, as_script: bool, as_json: bool) -> None:
    """Print the best trial of STUDY."""
    path = find_path(study_name, socket_name)
    summary = summary_of(path, socket_name)
    row = summary.best_row
    if row is None:
        raise BftError(
            "BFT-1635",
            f"No trial of {summary.name} has reported a value yet.",
            f"See 'bftrainer study status {path}'.",
            exit_code=ExitCode.NOT_FOUND,
        )
    if as_script:
        print_as_it_is(command_of(read_directory(path), row))
    elif as_json:
        print_json(document("trial", row))
    else:
        value = "-"
        if row.value is not None:
            value = quantity(row.value, 10)
        lines: list[tuple[str, object]] = [
            ("trial", f"{row.number}, {row.stage}"),
            (summary.metric, f"{value} at {row.units} {summary.unit}"),
            *row.parameters.items(),
            ("checkpoint", row.checkpoint_dir),
        ]
        print_pairs(lines, 14)


@verb(*STUDY, JSON, SOCKET, example="bftrainer study export digits")
def export(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """Print every trial of STUDY with its parameters; --json has all its values, too."""
    summary = summary_of(find_path(study_name, socket_name), socket_name)
    if as_json:
        print_json(document(SUMMARY_SCHEMA, summary))
        return
    names: list[str] = []
    if summary.trials:
        names = list(summary.trials[0].parameters)
    rows = []
    for row in summary.trials:
        cells = [getattr(row, column) for column in _COLUMNS]
        rows.append(cells + [row.parameters.get(name) for name in names])
    print_csv([*_COLUMNS, *names], rows)


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
