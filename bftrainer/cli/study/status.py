"""``bftrainer study status STUDY``: the best trial, the rungs, and a table of trials."""

from __future__ import annotations

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import duration, json_option, print_json, print_table, socket_option
from bftrainer.cli.study.lookup import find_path, study_argument, summary_of
from bftrainer.model.columns import shown
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
