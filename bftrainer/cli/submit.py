"""``bftrainer submit SCRIPT``: submit an elastic trainer to the daemon, like sbatch.

Builds a ``TrainerSpec`` from options and #BFT lines, checks it on this machine and prints
(``--dry-run``) or sends it. ``--wait`` turns the trainer's end into the exit code.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from bftrainer.api.admission import check_spec
from bftrainer.api.client import Client
from bftrainer.api.documents import document, encode, listing, schema
from bftrainer.cli.checks import check_here, check_script
from bftrainer.cli.common import connect, json_option, print_json, socket_option
from bftrainer.cli.spec import COMMAND, build_spec, find_command, given, merge, read_directives
from bftrainer.cli.submission import StartState, send_all, source_of, specs_of
from bftrainer.cli.submit_options import spec_options
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerSpec, TrainerState
from bftrainer.model.views import TrainerView

WAIT_INTERVAL_S = 1.0
AWAY_LIMIT_S = 300.0  # how long --wait tolerates an unreachable daemon
_EXIT_CODES = {
    TrainerState.FINISHED: 0,
    TrainerState.FAILED: 1,
    TrainerState.CANCELLED: 128 + signal.SIGTERM,
}


@click.command(
    params=[
        *spec_options(),
        click.Argument(["script"], metavar="SCRIPT"),
        click.Argument(["args"], metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED),
    ],
    context_settings={"allow_interspersed_args": False},
)
@click.option("--dry-run", is_flag=True, help="Check everything and print what would be sent.")
@click.option("--wait", is_flag=True, help="Wait for its end: 0 finished, 1 failed, 143 cancelled.")
@click.option("--parsable", is_flag=True, help="Print the id only.")
@click.option(
    "--resume-from",
    metavar="ID|DIR",
    help="Start from the newest checkpoint of a trainer, which keeps it.",
)
@click.option("--fresh", is_flag=True, help="Set the checkpoints in its directory aside first.")
@json_option
@socket_option
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    script: str,
    args: tuple[str, ...],
    socket_name: str | None,
    resume_from: str | None,
    *,
    fresh: bool,
    dry_run: bool,
    wait: bool,
    parsable: bool,
    as_json: bool,
    **_: Any,
) -> int:
    """Hand the training script SCRIPT (or any program, see --runtime) to the daemon.

    Lines "#BFT OPTIONS" at the head of the script are read as if they stood on the
    command line, which wins.
    """
    if (dry_run and (wait or parsable)) or (as_json and parsable):
        raise click.UsageError(
            "--dry-run excludes --wait and --parsable; --json excludes --parsable"
        )
    if ctx.params["runtime"] == COMMAND:
        script = find_command(script, os.environ)
    check_script(script)
    values = _values(ctx, script)
    spec = build_spec(script, args, values, os.environ)
    specs = specs_of(
        spec, values.get("array"), has_own_dir=values.get("checkpoint_dir") is not None
    )
    for one in specs:
        check_spec(one)
    checks = check_here(specs[0])
    warn_of_late_options(ctx, script, args)
    if dry_run:
        _print_dry_run(specs, checks, as_json=as_json)
        return ExitCode.OK
    client = connect(socket_name)
    state = StartState(source=source_of(client, resume_from), is_fresh=fresh)
    views = send_all(client, specs, state)
    for view in views if not as_json else ():
        trainer_id = view.record.trainer_id
        click.echo(trainer_id if parsable else f"Submitted trainer {trainer_id}")
    if wait:
        views = tuple(wait_for_end(client, view.record.trainer_id) for view in views)
    if as_json:
        is_array = values.get("array") is not None
        print_json(listing("trainers", views) if is_array else document("trainer", views[0]))
    return _outcome(views) if wait else ExitCode.OK


def _outcome(views: Sequence[TrainerView]) -> int:
    """Say how they have ended; return the code of the first that has not finished."""
    for record in (view.record for view in views):
        why = f": {shown(record.reason)}" if record.reason else ""
        click.echo(f"{record.trainer_id} {record.state}{why}", err=True)
    codes = [_EXIT_CODES[view.record.state] for view in views]
    return next((code for code in codes if code), 0)


def warn_of_late_options(ctx: click.Context, script: str, args: tuple[str, ...]) -> None:
    """Warn of our own options among the script's arguments, unless the script mentions them."""
    own = {name for param in ctx.command.params for name in param.opts if name.startswith("--")}
    late = [name for name in (argument.partition("=")[0] for argument in args) if name in own]
    text = Path(script).read_text(errors="replace") if late else ""
    for name in late:
        if name not in text:
            click.echo(
                f"warning: {shown(name)} follows {shown(script)} and is passed to it;"
                f" options of {ctx.command.name} come before the script",
                err=True,
            )


def _values(ctx: click.Context, script: str) -> dict[str, Any]:
    """Merge defaults, #BFT lines and the command line; the last wins."""
    written = read_directives(script)
    for name, value in given(ctx).items():
        merge(written, name, value)
    return {**ctx.params, "interpreter": None, "venv": None, **written}


def _print_dry_run(specs: Sequence[TrainerSpec], checks: tuple[str, ...], *, as_json: bool) -> None:
    spec = specs[0]  # of an array, the others differ in index, name and directory
    more = {"array": len(specs)} if len(specs) > 1 else {}
    if as_json:
        said = {"spec": encode(spec), "checks": list(checks), **more}
        print_json({"schema": schema("dry-run"), **said})
        return
    if more:
        click.echo(f"{'array':<22} {len(specs)} trainers; the first:")
    preamble = f"{len(spec.preamble.encode())} bytes" if spec.preamble else ""
    for name, value in (encode(spec) | {"preamble": preamble}).items():
        click.echo(f"{name:<22} {shown(str(value))}")
    for check in checks:
        click.echo(f"ok                     {shown(check)}")
    click.echo("nothing was sent", err=True)


def wait_for_end(client: Client, trainer_id: str) -> TrainerView:
    """Poll the daemon, which may restart meanwhile, until the trainer has ended."""
    last_seen = time.monotonic()
    while True:
        try:
            view = client.trainer(trainer_id)
        except BftError as error:
            is_away = error.exit_code in (ExitCode.DAEMON_UNREACHABLE, ExitCode.TIMEOUT)
            if not is_away or time.monotonic() - last_seen > AWAY_LIMIT_S:
                raise
        else:
            if view.record.state.is_final:
                return view
            last_seen = time.monotonic()
        time.sleep(WAIT_INTERVAL_S)
