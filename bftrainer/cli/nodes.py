"""``bftrainer nodes``: every node and its use, from the daemon's ``NodeView``s."""

from __future__ import annotations

import time

import click

from bftrainer.api.documents import listing
from bftrainer.cli.common import (
    connect,
    duration,
    json_option,
    print_json,
    print_table,
    socket_option,
)
from bftrainer.model.views import NodeView

HEADERS = ("NODE", "TYPE", ">GPUS", "STATE", "USE", "TRAINER", "PILOT", ">USABLE", "REASON")


@click.command()
@json_option
@socket_option
def nodes(socket_name: str | None, *, as_json: bool) -> None:
    """Show every node and what it is used for."""
    views = connect(socket_name).nodes()
    if as_json:
        print_json(listing("nodes", views))
        return
    if not views:
        click.echo("no nodes seen yet")
    now_s = time.time()
    print_table(HEADERS, [_row(view, now_s) for view in views])


def _row(view: NodeView, now_s: float) -> tuple[str, ...]:
    usable = "-" if view.usable_until_s is None else duration(view.usable_until_s - now_s)
    return (
        view.name,
        view.node_type,
        str(view.gpus),
        view.state,
        view.use,
        view.trainer_id or "-",
        view.pilot_id or "-",
        usable,
        view.reason,
    )
