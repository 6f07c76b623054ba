"""``bftrainer down``: end one's own daemon and release its nodes.

Trainers stay in its journal: the next ``bftrainer up`` goes on with them.
"""

from __future__ import annotations

import time

import click

from bftrainer.cli.common import connect, json_option, print_json, socket_option
from bftrainer.model.errors import BftError, ExitCode

TURN_S = 0.1
LIMIT_S = 90.0  # a minute for the last checkpoints


@click.command()
@click.option("--now", is_flag=True, help="Kill the workers; write no checkpoints first.")
@json_option
@click.option("--batch-system", default="slurm", hidden=True)
@socket_option
def down(socket_name: str | None, batch_system: str, *, now: bool, as_json: bool) -> int:
    """End your daemon: trainers write a checkpoint, then all nodes are released.

    Trainers that have not finished go on with the next 'bftrainer up'.
    """
    from bftrainer.site.own.site import load  # noqa: PLC0415 - -h needs none of it

    client, sites = connect(socket_name), load(batch_system)
    if (job := sites.find_daemon()) and job.state == "pending":
        sites.cancel_daemon(job.job_id)
        click.echo(f"The job of your daemon ({job.job_id}) was pending and is cancelled.")
        return ExitCode.OK
    left = [v.record.trainer_id for v in client.trainers() if not v.record.state.is_final]
    client.shutdown("now" if now else "saved")
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            client.status()
        except BftError as error:
            if error.exit_code == ExitCode.DAEMON_UNREACHABLE:
                break
        time.sleep(TURN_S)
    else:
        raise BftError(
            "BFT-1105",
            f"The daemon still runs after {LIMIT_S:g} s.",
            "Try: bftrainer down --now",
            exit_code=ExitCode.TIMEOUT,
        )
    if as_json:
        print_json({"ended": True, "unfinished": left})
        return ExitCode.OK
    click.echo("Your daemon has ended." + (f" To be continued: {', '.join(left)}" if left else ""))
    return ExitCode.OK
