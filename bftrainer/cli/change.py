"""``bftrainer cancel``, ``hold``, ``release``, ``update``, ``requeue``: change trainers.

The exit code is that of the first failure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from bftrainer.api.documents import listing
from bftrainer.cli.common import (
    connect,
    json_option,
    print_json,
    socket_option,
    trainer_id_argument,
)
from bftrainer.cli.main import print_error
from bftrainer.cli.submit_options import parse_sizes
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerChange
from bftrainer.model.views import TrainerView


def for_each(
    trainer_ids: Sequence[str],
    ask: Callable[[str], TrainerView],
    say: Callable[[str, TrainerView], str],
    *,
    as_json: bool,
) -> int:
    """Ask for each trainer and print what ``say`` makes of the answers, or all as JSON."""
    first, views = ExitCode.OK, []
    for trainer_id in dict.fromkeys(trainer_ids):
        try:
            view = ask(trainer_id)
        except BftError as error:
            print_error(error)
            first = first or error.exit_code
            if error.exit_code == ExitCode.DAEMON_UNREACHABLE:
                break  # the others would fail, too
        else:
            views.append(view)
            if not as_json:
                click.echo(shown(say(trainer_id, view)))
    if as_json:
        print_json(listing("trainers", views))
    return int(first)


@click.command()
@trainer_id_argument(nargs=-1)
@json_option
@socket_option
def hold(trainer_ids: tuple[str, ...], socket_name: str | None, *, as_json: bool) -> int:
    """Keep the trainers ID... from having nodes; those that run leave after a checkpoint."""
    return _change(trainer_ids, socket_name, TrainerChange(is_held=True), as_json=as_json)


@click.command()
@trainer_id_argument(nargs=-1)
@json_option
@socket_option
def release(trainer_ids: tuple[str, ...], socket_name: str | None, *, as_json: bool) -> int:
    """Let held trainers have nodes again; they go on from their checkpoints."""
    return _change(trainer_ids, socket_name, TrainerChange(is_held=False), as_json=as_json)


@click.command()
@trainer_id_argument(nargs=-1)
@click.option(
    "-N",
    "--nodes",
    "sizes",
    type=parse_sizes,
    metavar="MIN:MAX",
    help="Sizes it may have, in nodes.",
)
@click.option("--weight", type=float, metavar="W", help="Priority under the weighted objective.")
@click.option("-J", "--job-name", "--name", "name", metavar="NAME", help="Name of the trainer.")
@json_option
@socket_option
def update(
    trainer_ids: tuple[str, ...],
    sizes: tuple[int, int] | None,
    weight: float | None,
    name: str | None,
    socket_name: str | None,
    *,
    as_json: bool,
) -> int:
    """Change the trainers ID..., whether they run or wait; the next decision knows it."""
    n_min, n_max = sizes or (None, None)
    change = TrainerChange(n_min=n_min, n_max=n_max, weight=weight, name=name)
    if change == TrainerChange():
        raise click.UsageError("There is nothing to change: give --nodes, --weight or --job-name.")
    return _change(trainer_ids, socket_name, change, as_json=as_json)


@click.command()
@trainer_id_argument(nargs=-1)
@json_option
@socket_option
def requeue(trainer_ids: tuple[str, ...], socket_name: str | None, *, as_json: bool) -> int:
    """Start the trainers ID... again from their checkpoints.

    One that runs writes a checkpoint, leaves its nodes and waits for new ones. One that has
    failed or was cancelled is submitted again as a new trainer with the same checkpoint directory.
    """
    return for_each(trainer_ids, connect(socket_name).requeue, _requeued, as_json=as_json)


def _change(
    trainer_ids: tuple[str, ...], socket_name: str | None, change: TrainerChange, *, as_json: bool
) -> int:
    client = connect(socket_name)
    return for_each(trainer_ids, lambda i: client.change(i, change), _changed, as_json=as_json)


def _changed(trainer_id: str, view: TrainerView) -> str:
    record, spec = view.record, view.record.spec
    is_held = "held, " if record.held_s is not None else ""
    sizes = f"{spec.n_min}:{spec.n_max} nodes, weight {spec.weight:g}"
    return f"{trainer_id} {is_held}{record.state}, {spec.name}, {sizes}"


def _requeued(trainer_id: str, view: TrainerView) -> str:
    new = view.record.trainer_id
    if new != trainer_id:
        return f"{trainer_id} is submitted again as trainer {new}"
    return f"{trainer_id} {view.waits or f'is {view.record.state} and has no workers to stop.'}"


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
