"""``bftrainer drain`` and ``bftrainer resume``: an administrator's switch for all nodes."""

from __future__ import annotations

import re
import time

import click

from bftrainer.api.client import Client
from bftrainer.cli.common import connect, duration, json_option, print_json, socket_option
from bftrainer.model.errors import BftError, ExitCode, UsageError

TURN_S = 0.1
PATIENCE_S = 20.0  # after the deadline, until the batch system says that the pilots are gone
MOST_S = 86_400
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"([0-9]{1,6})([smh]?)\Z")


def parse_duration(text: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``5m`` or ``1h``; BFT-1547 for anything else."""
    match = _DURATION.match(text)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else -1
    if not 0 <= seconds <= MOST_S:
        raise UsageError(
            "BFT-1547",
            f"{text[:40]!r} is not a time of at most a day.",
            "Write for example 60s, 5m or 1h.",
        )
    return float(seconds)


@click.command()
@click.option("--all", "is_all", is_flag=True, required=True,
              help="All nodes; required, so that nobody does it by mistake.")  # fmt: skip
@click.option("--deadline", "limit_s", type=parse_duration, default="60s", show_default=True,
              metavar="TIME", help="All nodes are back after this; until then workers save.",
              )  # fmt: skip
@json_option
@socket_option
def drain(socket_name: str | None, *, is_all: bool, limit_s: float, as_json: bool) -> int:  # noqa: ARG001 - is_all is required
    """Give all nodes back, and take none until 'bftrainer resume'.

    Trainers write a checkpoint and stay queued. It survives the end of the daemon. Returns when
    all nodes are back; interrupting it changes nothing. Exit code 7: some are not.
    """
    client, began_s = connect(socket_name), time.monotonic()
    asked = client.drain(limit_s)
    left = _until_empty(client, began_s + limit_s + PATIENCE_S)
    took_s = time.monotonic() - began_s
    if as_json:
        print_json({"nodes": list(asked.nodes), "took_s": round(took_s, 3), "left": left})
    elif not left:
        click.echo(f"{len(asked.nodes)} nodes are given back after {took_s:.1f} s.")
    if not left:
        return ExitCode.OK
    raise BftError(
        "BFT-1548",
        f"{left} nodes are not back after {duration(took_s)}; the daemon goes on trying.",
        "Look at 'bftrainer status'; without the daemon: scancel of the pilots' partition "
        "(docs/howto/operate.md).",
        exit_code=ExitCode.TIMEOUT,
    )


def _until_empty(client: Client, deadline: float) -> int:
    """Wait for the batch system to say so; return how many pilots are left."""
    while True:
        view = client.status()
        left = view.nodes_held + view.nodes_requested
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(TURN_S)


@click.command()
@json_option
@socket_option
def resume(socket_name: str | None, *, as_json: bool) -> None:
    """Take nodes again after 'bftrainer drain'."""
    connect(socket_name).resume()
    if as_json:
        print_json({"resumed": True})
    else:
        click.echo("Nodes are taken again.")
