"""``bftrainer cancel ID...``: end trainers.

Ids come in; each is tried, whatever becomes of the others, and the exit code is that
of the first one that could not be cancelled.
"""

from __future__ import annotations

import click

from bftrainer.cli.common import connect, shown, socket_option, trainer_id_argument
from bftrainer.cli.main import print_error
from bftrainer.errors import BftError, ExitCode


@click.command()
@trainer_id_argument(nargs=-1)
@socket_option
def cancel(trainer_ids: tuple[str, ...], socket_name: str | None) -> int:
    """End the trainers ID...; their checkpoints stay."""
    client = connect(socket_name)
    first = ExitCode.OK
    for trainer_id in dict.fromkeys(trainer_ids):
        try:
            view = client.cancel(trainer_id)
        except BftError as error:
            print_error(error)
            first = first or error.exit_code
            if error.exit_code == ExitCode.DAEMON_UNREACHABLE:
                break  # the next one would meet the same
        else:
            click.echo(f"{view.record.trainer_id} {shown(str(view.record.state))}")
    return int(first)
