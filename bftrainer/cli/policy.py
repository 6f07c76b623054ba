"""``bftrainer policy``: check a policy file, show the values in force, print the schema.

Works on files only; needs no daemon.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from bftrainer.cli.policy_train import train
from bftrainer.errors import ExitCode


@click.group(name="policy")
def policy() -> None:
    """Check and show the administrator's policy file."""


policy.add_command(train)


@policy.command(name="check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--batch-system", default="slurm", show_default=True,
              help="Whose options are in it.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def check(context: click.Context, file: Path, batch_system: str, *, as_json: bool) -> None:
    """Name everything wrong with FILE, with line and column (exit code 8)."""
    from bftrainer.policy import PolicyErrors, load_policy_file  # noqa: PLC0415 - pydantic is slow

    problems: tuple[Any, ...] = ()
    sha256 = None
    try:
        sha256 = load_policy_file(file, batch_system=batch_system).sha256
    except PolicyErrors as errors:
        problems = errors.problems
    if as_json:
        _print_json(
            {
                "schema": "bftrainer/policy-check/1",
                "file": str(file),
                "ok": not problems,
                "policy_hash": sha256,
                "problems": [
                    {
                        "code": problem.code,
                        "line": problem.line,
                        "column": problem.column,
                        "cause": problem.cause,
                        "next_step": problem.next_step,
                    }
                    for problem in problems
                ],
            }
        )
    else:
        for problem in problems:
            click.echo(problem.render(file), err=True)
        if not problems:
            click.echo(f"{file}: ok")
    context.exit(ExitCode.VALIDATION_FAILED if problems else ExitCode.OK)


@policy.command(name="show")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the values as JSON.")
def show(file: Path | None, *, as_json: bool) -> None:
    """Print the values in force with FILE (or none) and where each comes from."""
    from bftrainer.policy import load_policy_file  # noqa: PLC0415 - pydantic is slow
    from bftrainer.policy.schema import yaml_value  # noqa: PLC0415

    loaded = load_policy_file(file)
    if as_json:
        values = loaded.policy.model_dump(mode="json")
        _print_json(
            {
                "schema": "bftrainer/policy/1",
                "file": None if file is None else str(file),
                "policy_hash": loaded.sha256,
                "settings": {
                    name: {"value": value, "origin": loaded.origins[name]}
                    for name, value in values.items()
                },
            }
        )
        return
    lines = {f"{name}: {yaml_value(value)}": loaded.origins[name] for name, value in loaded.policy}
    width = min(max(map(len, lines)), 80)  # the content of a file may be an option
    for line, origin in lines.items():
        click.echo(f"{line:{width}}  # {origin}")


@policy.command(name="schema")
def schema() -> None:
    """Print the JSON schema of policy files, for editors."""
    from bftrainer.policy.schema import json_schema  # noqa: PLC0415 - pydantic is slow

    _print_json(json_schema())


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, indent=2))
