"""``bftrainer study best STUDY``: the best trial's parameters, value and checkpoint."""

from __future__ import annotations

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import json_option, print_json, socket_option
from bftrainer.cli.study.lookup import find_path, study_argument, summary_of
from bftrainer.cli.study.retrain import command_of
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.study.directory import read_directory


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
