"""``bftrainer cancel ID...``: end trainers.

Every id is tried; the exit code is that of the first failure.
"""

from __future__ import annotations

import click

from bftrainer.cli.common import connect, socket_option, trainer_id_argument
from bftrainer.cli.main import print_error
from bftrainer.columns import shown
from bftrainer.errors import BftError, ExitCode


@click.command()
@trainer_id_argument(nargs=-1)
@click.option("--now", is_flag=True, help="Kill their workers; write no checkpoint first.")
@socket_option
def cancel(trainer_ids: tuple[str, ...], socket_name: str | None, *, now: bool) -> int:
    """End the trainers ID... after a last checkpoint; their checkpoints stay."""
    client = connect(socket_name)
    first = ExitCode.OK
    for trainer_id in dict.fromkeys(trainer_ids):
        try:
            view = client.cancel(trainer_id, now=now)
        except BftError as error:
            print_error(error)
            first = first or error.exit_code
            if error.exit_code == ExitCode.DAEMON_UNREACHABLE:
                break  # the others would fail, too
        else:
            record = view.record
            said = str(record.state) if record.state.is_final else record.reason
            click.echo(f"{record.trainer_id} {shown(said)}")
    return int(first)
