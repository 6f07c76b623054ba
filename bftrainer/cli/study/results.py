"""``bftrainer study status``, ``best``, ``export`` and ``plot``: the results of a study.

The ``bftrainer submit`` line of ``best`` has every option of the study's trainers that is not the
default, except those on when they were to start.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
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
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.quantities import quantity
from bftrainer.model.study import PARAMETERS
from bftrainer.model.trainer import CheckpointContract, TrainerSpec
from bftrainer.study import trial_table
from bftrainer.study.directory import StudyDirectory, read_directory, unreadable
from bftrainer.study.trial_table import SUMMARY_SCHEMA, StudySummary, TrialRow

MOST_SHOWN = 20  # of the trials that are over


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
    over = sorted(
        (row for row in summary.trials if row.ended_s is not None),
        key=lambda row: row.ended_s or 0.0,
    )
    # Those that were over early, but not the best.
    hidden = {row.number for row in over[:-MOST_SHOWN]} - {summary.best}
    rows = trial_table.best_first(summary)
    print_report(report_of(summary, [row for row in rows if show_all or row.number not in hidden]))


# Options of trainers by their fields; what is the default is left out.
_OPTIONS = {
    "interpreter": "--interpreter",
    "gres": "--gres",
    "constraint": "--constraint",
    "account": "--account",
    "checkpoint_interval_s": "--checkpoint-interval",
    "rescale_rest_s": "--rescale-rest",
    "seed": "--seed",
    "weight": "--weight",
    "max_failures": "--max-failures",
    "notify": "--notify",
    "backend": "--backend",
}
_CONTRACT = {
    "launch": "--launch",
    "stop_signal": "--checkpoint-signal",
    "save_signal": "--save-signal",
    "saved_status": "--checkpoint-status",
    "grace_s": "--checkpoint-grace",
}


def command_of(study: StudyDirectory, row: TrialRow) -> str:
    """Return the command line that trains a trial in full."""
    from bftrainer.study.actions import filled  # noqa: PLC0415 - slow to import

    base, document, unit = study.base, study.document, study.document.unit
    words = ["bftrainer", "submit", "-J", f"{document.name}-best"]
    words += ["--nodes", base.nodes, f"--{unit}", str(document.rule_with().most)]
    words += ["--runtime", base.runtime, "--workers-per-node", str(base.workers_per_node)]
    words += ["--chdir", base.cwd]
    # Trainers have what those files said.
    for name in ("curve", "preamble"):
        words += [f"--{name}", str(document.submit[name])] if document.submit.get(name) else []
    words += _given(_OPTIONS, base, TrainerSpec(name="", user="", script=""))
    if base.batch is not None:
        words += ["--batch", f"{base.batch.least}:{base.batch.most}"]
        words += ["--batch-per-worker", str(base.batch.per_worker), "--lr-rule", base.batch.lr_rule]
    words += _given(_CONTRACT, base.contract or CheckpointContract(), CheckpointContract())
    for name, value in (*base.environment, (PARAMETERS, json.dumps(dict(row.parameters)))):
        words += ["--export", f"{name}={value}"]
    return shlex.join([*words, base.script, *filled(base.args, row.parameters)])


def _given(options: Mapping[str, str], record: object, usual: object) -> list[str]:
    """Return the options whose fields are not as usual, with their values."""
    words: list[str] = []
    for name, flag in options.items():
        value = getattr(record, name)
        if value != getattr(usual, name) and value not in (None, ""):
            words += [flag, str(value)]
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
        value = "-" if row.value is None else quantity(row.value, 10)
        lines = [
            ("trial", f"{row.number}, {row.stage}"),
            (summary.metric, f"{value} at {row.units} {summary.unit}"),
            *((name, str(value)) for name, value in row.parameters.items()),
            ("checkpoint", row.checkpoint_dir),
        ]
        print_pairs(lines, 14)


_COLUMNS = (
    *("number", "stage", "value", "units", "budget", "node_s", "bracket", "parent", "attempt"),
    *("began_s", "ended_s", "reason"),
)


@verb(*STUDY, JSON, SOCKET, example="bftrainer study export digits")
def export(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """Print every trial of STUDY with its parameters; --json has all its values, too."""
    summary = summary_of(find_path(study_name, socket_name), socket_name)
    if as_json:
        print_json(document(SUMMARY_SCHEMA, summary))
        return
    names = list(summary.trials[0].parameters) if summary.trials else []
    rows = (
        [*(getattr(row, name) for name in _COLUMNS), *(row.parameters.get(n) for n in names)]
        for row in summary.trials
    )
    print_csv([*_COLUMNS, *names], rows)


ENDINGS = (".html", ".png", ".svg", ".pdf")
KINDS = ("history", "parallel", "importance", "rungs")


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
    file = out or Path(f"{summary.name}{f'-{kind}' if kind else ''}.png")
    events = read_events(study.events)
    try:
        found = material(summary, study.document.parameters, events)
    except (LookupError, TypeError, ValueError) as problem:
        next_step = "Remove it; only pictures need it."
        raise unreadable(str(study.events), problem, next_step) from problem
    if file.suffix.lower() == ".html":
        from bftrainer.lab.study_page import write_page  # noqa: PLC0415 - for pages alone

        write_page(file, found, summary, kind, shlex.join(["bftrainer", *sys.argv[1:]]))
    else:
        draw(found, kind, file)
    if as_json:
        kinds = [kind] if kind else list(KINDS)
        print_json({"schema": schema("plot"), "file": str(file.absolute()), "kinds": kinds})
    else:
        print_lines(f"wrote {file}")
