"""``bftrainer explain ID``: prints the daemon's ``Explanation`` of a trainer's size."""

from __future__ import annotations

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import (
    connect,
    json_option,
    print_json,
    socket_option,
    trainer_id_argument,
)
from bftrainer.columns import shown
from bftrainer.model.views import Explanation


@click.command()
@trainer_id_argument()
@json_option
@socket_option
def explain(trainer_id: str, socket_name: str | None, *, as_json: bool) -> None:
    """Say why the trainer ID has the size it has, or why it does not run."""
    view = connect(socket_name).explain(trainer_id)
    if as_json:
        print_json(document("explain", view))
        return
    click.echo(
        f"{view.trainer_id} is {shown(view.state)} on {view.observed_size} nodes; "
        f"planned: {view.planned_size}"
    )
    for sentence in view.sentences:
        click.echo(f"- {shown(sentence)}")
    for line in _numbers(view):
        click.echo(line)


def _numbers(view: Explanation) -> list[str]:
    if view.decision_id is None:
        return ["no decision has been made about it yet"]
    if view.terms:
        width = max(len(term.name) for term in view.terms)
        return [
            f"decision {view.decision_id}; what the policy {view.policy} went by:",
            *[
                f"  {shown(term.name):<{width}}  {term.value:.6g} {shown(term.unit)}".rstrip()
                for term in view.terms
            ],
        ]
    return [
        f"decision {view.decision_id}; what it weighed, in units of the policy's objective:",
        f"  one node more anywhere  {view.node_price:.4g}",
        f"  one node more here      {_change(view.gain_of_one_more, 'it cannot take another')}",
        f"  one node fewer here     {_change(_negative(view.loss_of_one_fewer), 'it has none')}",
    ]


def _negative(loss: float | None) -> float | None:
    return None if loss is None else -loss


def _change(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value:+.4g}"
