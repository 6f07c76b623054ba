"""``bftrainer try SCRIPT``: a user's own script on nodes that come and go, on this machine."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import click

from bftrainer.api.admission import check_spec
from bftrainer.api.documents import document
from bftrainer.cli.checks import check_here, check_script
from bftrainer.cli.common import json_option, print_json
from bftrainer.cli.spec import build_spec, given, merge, read_directives
from bftrainer.cli.submit import warn_of_late_options
from bftrainer.cli.submit_options import spec_options
from bftrainer.model.errors import UsageError

TORCH = "torch"
# Options of submit that say how the script runs, not where and with which priority.
TAKEN = (
    *("cwd", "interpreter", "venv", "environment", "preamble"),
    *("epochs", "samples", "workers_per_node"),
)


@click.command(
    "try",
    params=[
        *(option for option in spec_options() if option.name in TAKEN),
        click.Argument(["script"], metavar="SCRIPT"),
        click.Argument(["args"], metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED),
    ],
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-N",
    "--nodes",
    "n_nodes",
    type=click.IntRange(2, 16),
    default=3,
    show_default=True,
    help="Nodes on this machine.",
)
@click.option(
    "--seconds",
    "limit_s",
    type=click.FloatRange(1.0, 86400.0),
    metavar="S",
    help="End it after this time.  [default: when the script ends]",
)
@click.option(
    "--compare",
    "compares",
    is_flag=True,
    help="Run it in one process as well, before, and say what differs.",
)
@json_option
@click.pass_context
def try_out(
    ctx: click.Context,
    /,
    script: str,
    args: tuple[str, ...],
    n_nodes: int,
    limit_s: float | None,
    *,
    compares: bool,
    as_json: bool,
    **_: Any,
) -> None:
    """Run the training script SCRIPT on nodes that come and go on this machine.

    Needs no cluster and no daemon. One worker is killed while it trains. Says at the end whether
    every sample was used exactly once per epoch. Checkpoints are not kept. With --compare also
    whether elastic training changes anything: losses, final parameters, samples, time.
    """
    check_script(script)
    spec = build_spec(script, args, _values(ctx, script), os.environ)
    if spec.runtime != TORCH:
        raise UsageError(
            "BFT-1056",
            f"A try needs runtime torch, and {script} asks for {spec.runtime}.",
            "Submit it to a daemon, or try a script that uses bftrainer.elastic.",
        )
    check_spec(spec)
    check_here(spec)
    warn_of_late_options(ctx, script, args)
    # Imported here to keep other verbs fast.
    from bftrainer.lab.tryout.run import run_try  # noqa: PLC0415

    say = partial(click.echo, err=as_json)
    report = run_try(spec, n_nodes, limit_s, say, compares=compares)
    if as_json:
        print_json(document("try", report))


def _values(ctx: click.Context, script: str) -> dict[str, Any]:
    """Merge the defaults of submit, #BFT lines and the command line; the last wins."""
    defaults = click.Command("defaults", params=list(spec_options())).make_context("", []).params
    written = read_directives(script)
    for name, value in given(ctx).items():
        merge(written, name, value)
    taken = {name: value for name, value in written.items() if name in (*TAKEN, "runtime")}
    return {**defaults, **taken}
