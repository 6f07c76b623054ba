"""``bftrainer metrics``: the daemon's metrics in Prometheus' text format.

For users and for node_exporter's textfile collector; a Prometheus that can read a Unix socket
through a proxy queries /metrics itself.
"""

from __future__ import annotations

import click

from bftrainer.cli.common import connect, socket_option


@click.command()
@socket_option
def metrics(socket_name: str | None) -> None:
    """Print the daemon's metrics in Prometheus' text format."""
    click.echo(connect(socket_name).metrics(), nl=False)
