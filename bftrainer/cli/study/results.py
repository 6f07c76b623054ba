"""``bftrainer study status``, ``best``, ``export`` and ``plot``: the results of a study.

The ``bftrainer submit`` line of ``best`` has every option of the study's trainers that is not the
default, except those on when they were to start.
"""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from bftrainer.api.documents import document, schema
from bftrainer.cli.common import duration, json_option, print_json, print_table, socket_option
from bftrainer.cli.study.lookup import find_path, find_study, study_argument, summary_of
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.study import PARAMETERS
from bftrainer.model.trainer import CheckpointContract, TrainerSpec
from bftrainer.study.directory import StudyDirectory, read_directory
from bftrainer.study.outcome import StudySummary, TrialRow, parameters_line

MOST_SHOWN = 20  # of the trials that are over


@click.command()
@study_argument
@click.option("--all", "show_all", is_flag=True, help="Show every trial that is over, too.")
@json_option
@socket_option
def status(study_name: str, socket_name: str | None, *, show_all: bool, as_json: bool) -> None:
    """Show STUDY (its name, directory or YAML file), whether or not its loop runs."""
    summary = summary_of(find_path(study_name, socket_name), socket_name)
    if as_json:
        print_json(document("study", summary))
        return
    print_summary(summary)
    rows = summary.trials if show_all else _recent(summary)
    click.echo()
    headers = (">TRIAL", "STAGE", f">{summary.metric.upper()}", ">AT", ">BUDGET", ">NODES")
    print_table((*headers, ">NODE-TIME", "PARAMETERS"), [_cells(row) for row in rows])
    if hidden := len(summary.trials) - len(rows):
        click.echo(f"{hidden} more are over; see --all")


def print_summary(summary: StudySummary) -> None:
    """Print everything but the table of trials."""
    settings = ", ".join(f"{k} {v}" for k, v in summary.rule.items() if k != "name")
    click.echo(
        f"study       {shown(summary.study)}, {summary.state}, in {shown(summary.directory)}\n"
        f"rule        {summary.rule.get('name')}: {settings}\n"
        f"trials      {summary.active} active, {summary.waiting} waiting, {summary.over} over\n"
        f"nodes       {summary.nodes} of {summary.pool_nodes}, {duration(summary.node_s)}"
        f" node-time so far\n"
        f"best        {best_line(summary)}"
    )
    cells = [(str(r.budget), str(r.active), str(r.waiting), str(r.over)) for r in summary.rungs]
    click.echo()
    print_table((f">{summary.unit.upper()}", ">ACTIVE", ">WAITING", ">OVER"), cells)


def best_line(summary: StudySummary) -> str:
    """Return the best trial in one line."""
    row = summary.best_row
    if row is None or row.value is None:
        return "no trial has reported a value yet"
    return (
        f"trial {row.number}: {summary.metric} {row.value:.6g} at {row.units} {summary.unit};"
        f" {parameters_line(row.parameters)}"
    )


def _recent(summary: StudySummary) -> list[TrialRow]:
    """Return the trials without those that were over early, but with the best."""
    over = [row for row in summary.trials if row.ended_s is not None]
    hidden = {row.number for row in sorted(over, key=_ended)[:-MOST_SHOWN]} - {summary.best}
    return [row for row in summary.trials if row.number not in hidden]


def _ended(row: TrialRow) -> float:
    return row.ended_s or 0.0


def _cells(row: TrialRow) -> tuple[str, ...]:
    return (
        str(row.number),
        row.stage,
        "-" if row.value is None else f"{row.value:.6g}",
        str(row.units),
        str(row.budget),
        str(row.nodes),
        duration(row.node_s),
        parameters_line(row.parameters),
    )


def command_of(study: StudyDirectory, row: TrialRow) -> str:
    """Return the command line."""
    base, document, unit = study.base, study.document, study.document.unit
    words = ["bftrainer", "submit", "-J", f"{document.name}-best"]
    words += ["--nodes", f"{base.n_min}:{base.n_max}", f"--{unit}", str(document.rule_with().most)]
    words += ["--runtime", base.runtime, "--workers-per-node", str(base.workers_per_node)]
    words += ["--chdir", base.cwd]
    # Trainers have what those files said.
    files = [(f"--{name}", document.submit.get(name)) for name in ("curve", "preamble")]
    for option, value in [*files, *_options(base)]:
        words += [option, str(value)] if value not in (None, "") else []
    for name, value in (*base.environment, (PARAMETERS, json.dumps(dict(row.parameters)))):
        words += ["--export", f"{name}={value}"]
    from bftrainer.study.actions import filled  # noqa: PLC0415 - slow to import

    return shlex.join([*words, base.script, *filled(base.args, row.parameters)])


def _options(base: TrainerSpec) -> Iterator[tuple[str, object]]:
    """Return options with their values; None or "": the default."""
    usual = TrainerSpec(name="", user="", script="")
    for option, name in (
        ("--interpreter", "interpreter"),
        ("--gres", "gres"),
        ("--constraint", "constraint"),
        ("--account", "account"),
        ("--checkpoint-interval", "checkpoint_interval_s"),
        ("--weight", "weight"),
        ("--max-failures", "max_failures"),
        ("--notify", "notify"),
        ("--backend", "backend"),
    ):
        value = getattr(base, name)
        yield option, None if value == getattr(usual, name) else value
    if base.batch is not None:
        yield "--batch", f"{base.batch.least}:{base.batch.most}"
        yield "--batch-per-worker", base.batch.per_worker
        yield "--lr-rule", base.batch.lr_rule
    contract, plain = base.contract or CheckpointContract(), CheckpointContract()
    for option, name in (
        ("--launch", "launch"),
        ("--checkpoint-signal", "stop_signal"),
        ("--save-signal", "save_signal"),
        ("--checkpoint-status", "saved_status"),
        ("--checkpoint-grace", "grace_s"),
    ):
        value = getattr(contract, name)
        yield option, None if value == getattr(plain, name) else value


@click.command()
@study_argument
@click.option("--script", "as_script", is_flag=True, help="Print the command that trains it fully.")
@json_option
@socket_option
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
        click.echo(command_of(read_directory(path), row))
    elif as_json:
        print_json(document("trial", row))
    else:
        lines = [
            ("trial", f"{row.number}, {row.stage}"),
            (summary.metric, f"{row.value:.10g} at {row.units} {summary.unit}"),
            *((name, str(value)) for name, value in row.parameters.items()),
            ("checkpoint", row.checkpoint_dir),
        ]
        for name, value in lines:
            click.echo(f"{shown(name):<14} {shown(value)}")


_COLUMNS = (
    *("number", "stage", "value", "units", "budget", "node_s", "bracket", "parent", "attempt"),
    *("began_s", "ended_s", "reason"),
)


@click.command()
@study_argument
@json_option
@socket_option
def export(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """Print every trial of STUDY with its parameters; --json has all its values, too."""
    summary = summary_of(find_path(study_name, socket_name), socket_name)
    if as_json:
        print_json(document("study", summary))
        return
    names = list(summary.trials[0].parameters) if summary.trials else []
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*_COLUMNS, *names])
    for row in summary.trials:
        given = [getattr(row, name) for name in _COLUMNS]
        writer.writerow([*given, *(row.parameters.get(name) for name in names)])


ENDINGS = (".png", ".svg", ".pdf")
KINDS = ("history", "parallel", "importance", "rungs")


@click.command()
@study_argument
@click.option("--kind", type=click.Choice(KINDS), help="One picture.  [default: all on one page]")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="A .png, .svg or .pdf.  [default: NAME.png, NAME-KIND.png]")  # fmt: skip
@json_option
@socket_option
def plot(
    study_name: str, kind: str | None, out: Path | None, socket_name: str | None, *, as_json: bool
) -> None:
    """Draw STUDY: values over time, parameters, their importance, rungs over time."""
    from bftrainer.study.events import read_events  # noqa: PLC0415 - for this verb alone
    from bftrainer.study.plots.material import material  # noqa: PLC0415
    from bftrainer.study.plots.picture import draw  # noqa: PLC0415

    if out is not None and out.suffix.lower() not in ENDINGS:
        raise UsageError(
            "BFT-1662",
            f"The picture {out} cannot be written: its name says no format that is known here.",
            f"Let it end in one of {', '.join(ENDINGS)}.",
        )
    study = find_study(study_name, socket_name)
    summary = summary_of(study.path, socket_name)
    file = out or Path(f"{summary.name}{f'-{kind}' if kind else ''}.png")
    draw(material(summary, study.document.parameters, read_events(study.events)), kind, file)
    if as_json:
        kinds = [kind] if kind else list(KINDS)
        print_json({"schema": schema("plot"), "file": str(file.absolute()), "kinds": kinds})
    else:
        click.echo(f"wrote {file}")
