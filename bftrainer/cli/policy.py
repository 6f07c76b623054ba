"""``bftrainer policy``: check, show and compare policy files, and have a daemon read its own again.

All but ``reload`` work on files only and need no daemon.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import connect, json_option, print_table, socket_option
from bftrainer.cli.daemon import parse_options
from bftrainer.cli.policy_test import test
from bftrainer.cli.policy_train import train
from bftrainer.model.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bftrainer.model.views import SettingChange

MOST_CHARS = 40  # of a value in a table
_PATH = click.Path(path_type=Path)


@click.group(name="policy")
def policy() -> None:
    """Check, show and compare the administrator's policy files."""


policy.add_command(test)
policy.add_command(train)


@policy.command(name="check")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=_PATH)
@click.option("--batch-system", default="slurm", show_default=True,
              help="Whose options are in it.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def check(
    context: click.Context, paths: tuple[Path, ...], batch_system: str, *, as_json: bool
) -> None:
    """Name everything wrong with FILE, with line and column (exit code 8).

    Several files, or directories of them, are one policy: the last one that sets it decides over
    a setting.
    """
    from bftrainer.site.policy import PolicyErrors, load_policy_files  # noqa: PLC0415 - pydantic is slow

    problems: tuple[Any, ...] = ()
    sha256 = None
    try:
        sha256 = load_policy_files(paths, batch_system=batch_system).sha256
    except PolicyErrors as errors:
        problems = errors.problems
    if as_json:
        _print_json(
            {
                "schema": "bftrainer/policy-check/1",
                "file": " ".join(map(str, paths)),
                "ok": not problems,
                "policy_hash": sha256,
                "problems": [
                    {
                        "file": str(problem.path or paths[0]),
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
            click.echo(problem.render(paths[0]), err=True)
        if not problems:
            click.echo(f"{' '.join(map(str, paths))}: ok")
    context.exit(ExitCode.VALIDATION_FAILED if problems else ExitCode.OK)


@policy.command(name="show")
@click.argument("paths", metavar="[FILE]...", nargs=-1, type=_PATH)
@click.option("--batch-option", "pairs", multiple=True, metavar="KEY=VALUE",
              help="As the daemon gets it.")  # fmt: skip
@click.option("--origin", "with_all", is_flag=True,
              help="Name each place that sets a value, the one that counts first.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the values as JSON.")
def show(paths: tuple[Path, ...], pairs: tuple[str, ...], *, with_all: bool, as_json: bool) -> None:
    """Print the values in force with FILE... (or none) and where each comes from."""
    from bftrainer.site.policy import load_policy_files  # noqa: PLC0415 - pydantic is slow
    from bftrainer.site.policy.render import yaml_value  # noqa: PLC0415

    loaded, first = load_policy_files(paths), parse_options(pairs)
    given, shown = loaded.policy, dict(loaded.origins)
    if with_all:
        for name, places in loaded.overridden.items():
            shown[name] = ", over ".join((shown[name], *places))
    if first:
        given = given.model_copy(update={"batch_options": {**given.batch_options, **first}})
        shown["batch_options"] += f"; {', '.join(first)}: command line"
    if as_json:
        values = given.model_dump(mode="json")
        _print_json(
            {
                "schema": "bftrainer/policy/1",
                "file": " ".join(map(str, paths)) or None,
                "policy_hash": loaded.sha256,
                "settings": {
                    name: {"value": value, "origin": shown[name]} for name, value in values.items()
                },
            }
        )
        return
    lines = {f"{name}: {yaml_value(value)}": shown[name] for name, value in given}
    width = min(max(map(len, lines)), 80)  # the content of a file may be an option
    for line, origin in lines.items():
        click.echo(f"{line:{width}}  # {origin}")


@policy.command(name="diff")
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@json_option
def diff(old: Path, new: Path, *, as_json: bool) -> None:
    """Print what has another value with the policy NEW than with OLD, and when it takes effect."""
    from bftrainer.site.policy import load_policy_file  # noqa: PLC0415 - pydantic is slow
    from bftrainer.site.policy.changes import changes  # noqa: PLC0415

    before, after = load_policy_file(old), load_policy_file(new)
    found = changes(before.policy, after.policy)
    if as_json:
        _print_json(
            {
                "schema": "bftrainer/policy-diff/1",
                "old": {"file": str(old), "policy_hash": before.sha256},
                "new": {"file": str(new), "policy_hash": after.sha256},
                "changes": [asdict(change) for change in found],
            }
        )
        return
    _print_changes(found)


@policy.command(name="reload")
@json_option
@socket_option
def reload(socket_name: str | None, *, as_json: bool) -> None:
    """Have the daemon read its policy again, as SIGHUP does.

    A policy with a mistake changes nothing (exit code 8).
    """
    from bftrainer.api.documents import document  # noqa: PLC0415

    view = connect(socket_name).reload_policy()
    if as_json:
        _print_json(document("reload", view))
        return
    _print_changes(view.changes)
    click.echo(f"policy {view.policy_hash[:12]} is in force with the next decision")


@policy.command(name="schema")
def schema() -> None:
    """Print the JSON schema of policy files, for editors."""
    from bftrainer.site.policy.render import json_schema  # noqa: PLC0415 - pydantic is slow

    _print_json(json_schema())


def _print_changes(found: Sequence[SettingChange]) -> None:
    if not found:
        click.echo("no setting has another value")
        return
    rows = [
        (
            change.setting,
            change.before[:MOST_CHARS],
            change.after[:MOST_CHARS],
            f"restart: {change.restart}" if change.restart else "reload",
        )
        for change in found
    ]
    print_table(("SETTING", "BEFORE", "AFTER", "TAKES EFFECT"), rows)


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, indent=2))
