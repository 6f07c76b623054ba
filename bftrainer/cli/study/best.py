"""``bftrainer study best STUDY``: the best trial's parameters, value and checkpoint."""

from __future__ import annotations

import json
import shlex

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import json_option, print_json, socket_option
from bftrainer.cli.study.finding import find_path, study_argument, summary_of
from bftrainer.columns import shown
from bftrainer.errors import BftError, ExitCode
from bftrainer.model.study import PARAMETERS
from bftrainer.study.arguments import filled
from bftrainer.study.directory import StudyDirectory, read_directory
from bftrainer.study.outcome import TrialRow


@click.command()
@study_argument
@click.option("--script", "as_script", is_flag=True, help="Print the command that trains it fully.")
@json_option
@socket_option
def best(study_name: str, socket_name: str | None, *, as_script: bool, as_json: bool) -> None:
    """Print the best trial of STUDY."""
    path = find_path(study_name)
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


def command_of(study: StudyDirectory, row: TrialRow) -> str:
    """Return the command line that trains these parameters to the full budget."""
    base, document_, unit = study.base, study.document, study.document.unit
    words = ["bftrainer", "submit", "-J", f"{document_.name}-best"]
    words += ["--nodes", f"{base.n_min}:{base.n_max}", f"--{unit}", str(document_.rule_with().most)]
    words += ["--runtime", base.runtime, "--workers-per-node", str(base.workers_per_node)]
    words += ["--chdir", base.cwd]
    for option, value in (
        ("--interpreter", base.interpreter),
        ("--gres", base.gres),
        ("--constraint", base.constraint),
        ("--account", base.account),
    ):
        words += [option, value] if value else []
    for name, value in (*base.environment, (PARAMETERS, json.dumps(dict(row.parameters)))):
        words += ["--export", f"{name}={value}"]
    return shlex.join([*words, base.script, *filled(base.args, row.parameters)])
