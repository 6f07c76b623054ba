"""``bftrainer cancel ID...``: end trainers."""

from __future__ import annotations

import click

from bftrainer.cli.common import connect, json_option, socket_option, trainer_id_argument
from bftrainer.cli.each_trainer import for_each
from bftrainer.model.views import TrainerView


@click.command()
@trainer_id_argument(nargs=-1)
@click.option("--now", is_flag=True, help="Kill their workers; write no checkpoint first.")
@json_option
@socket_option
def cancel(
    trainer_ids: tuple[str, ...], socket_name: str | None, *, now: bool, as_json: bool
) -> int:
    """End the trainers ID... after a last checkpoint; their checkpoints stay."""
    client = connect(socket_name)
    return for_each(trainer_ids, lambda i: client.cancel(i, now=now), _said, as_json=as_json)


def _said(trainer_id: str, view: TrainerView) -> str:
    record = view.record
    return f"{trainer_id} {record.state if record.state.is_final else record.reason}"
