"""``bftrainer submit SCRIPT``: submit an elastic trainer to the daemon, like sbatch.

Builds a ``TrainerSpec`` from options and #BFT lines, checks it on this machine and prints
(``--dry-run``) or sends it. ``--wait`` turns the trainer's end into the exit code.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import click

from bftrainer.api.admission import check_spec
from bftrainer.api.client import Client
from bftrainer.api.codec import encode
from bftrainer.api.documents import document, schema
from bftrainer.cli.checks import (
    check_here,
    check_script,
    make_checkpoint_dir,
    remove_if_empty,
)
from bftrainer.cli.common import connect, json_option, print_json, socket_option
from bftrainer.cli.directives import given, merge, read_directives
from bftrainer.cli.spec import COMMAND, build_spec, find_command
from bftrainer.cli.submit_options import spec_options
from bftrainer.columns import shown
from bftrainer.errors import BftError, ExitCode
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
@json_option
@socket_option
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    script: str,
    args: tuple[str, ...],
    socket_name: str | None,
    *,
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
    spec = build_spec(script, args, _values(ctx, script), os.environ)
    check_spec(spec)
    checks = check_here(spec)
    for option in _late_options(ctx, script, args):
        click.echo(
            f"warning: {shown(option)} follows {shown(script)} and is passed to it;"
            " options of submit come before the script",
            err=True,
        )
    if dry_run:
        _print_dry_run(spec, checks, as_json=as_json)
        return ExitCode.OK
    client = connect(socket_name)
    view = _send(client, spec)
    trainer_id = view.record.trainer_id
    if parsable:
        click.echo(trainer_id)
    elif not as_json:
        click.echo(f"Submitted trainer {trainer_id}")
    if wait:
        view = wait_for_end(client, trainer_id)
    if as_json:
        print_json(document("trainer", view))
    if not wait:
        return ExitCode.OK
    record = view.record
    why = f": {shown(record.reason)}" if record.reason else ""
    click.echo(f"{trainer_id} {record.state}{why}", err=True)
    return _EXIT_CODES[record.state]


def _late_options(ctx: click.Context, script: str, args: tuple[str, ...]) -> list[str]:
    """Return our own options among the script's arguments, unless the script mentions them."""
    own = {name for param in ctx.command.params for name in param.opts if name.startswith("--")}
    late = [name for name in (argument.partition("=")[0] for argument in args) if name in own]
    text = Path(script).read_text(errors="replace") if late else ""
    return [name for name in late if name not in text]


def _values(ctx: click.Context, script: str) -> dict[str, Any]:
    """Merge defaults, #BFT lines and the command line; the last wins."""
    written = read_directives(script)
    for name, value in given(ctx).items():
        merge(written, name, value)
    return {**ctx.params, "interpreter": None, "venv": None, **written}


def _send(client: Client, spec: TrainerSpec) -> TrainerView:
    path = Path(spec.checkpoint_dir)
    is_new = make_checkpoint_dir(path)
    try:
        return client.submit(spec)
    except BftError as error:
        # After a time-out the trainer may exist and use the directory.
        if is_new and error.exit_code != ExitCode.TIMEOUT:
            remove_if_empty(path)
        raise


def _print_dry_run(spec: TrainerSpec, checks: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json({"schema": schema("dry-run"), "spec": encode(spec), "checks": list(checks)})
        return
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
