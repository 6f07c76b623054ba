"""``bftrainer explain ID``: prints the daemon's ``Explanation`` of a trainer's size."""

from __future__ import annotations

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import (
    connect,
    duration,
    json_option,
    print_json,
    socket_option,
    trainer_id_argument,
)
from bftrainer.model.columns import columns, shown
from bftrainer.model.decision import Term
from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import Explanation, SizeSpeed

_HEADERS = (">NODES", ">SAMPLES/S", ">LEFT", ">GAIN")


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
    state = "unheard" if view.unheard_nodes else shown(view.state)
    click.echo(
        f"{view.trainer_id} is {state} on {view.observed_size} nodes; planned: {view.planned_size}"
    )
    for sentence in view.sentences:
        click.echo(f"- {shown(sentence)}")
    for line in _numbers(view):
        click.echo(line)


def _numbers(view: Explanation) -> list[str]:
    if view.decision_id is None:
        return ["no decision has been made about it yet"]
    lines = []
    if view.terms:
        width = max(len(term.name) for term in view.terms)
        lines = [
            f"decision {view.decision_id}; what the policy {view.policy} went by:",
            *[f"  {shown(term.name):<{width}}  {_valued(term)}" for term in view.terms],
        ]
    if view.speeds:
        begin = "" if lines else f"decision {view.decision_id}; "
        table = columns(_HEADERS, [_row(one, view) for one in view.speeds])
        lines += [f"{begin}what it trains with so many nodes:"]
        lines += [f"  {line}" for line in table.splitlines()]
        if any(one.change_samples is not None for one in view.speeds):
            lines.append(f"  GAIN: within the next {view.t_fwd_s:.0f} s, pause included")
    if not lines and not TrainerState(view.state).is_final:
        return [f"decision {view.decision_id}; how fast it trains has not been measured yet"]
    return lines


def _valued(term: Term) -> str:
    if term.unit == "s" and term.value >= 60.0:
        return duration(term.value)
    return f"{term.value:.6g} {shown(term.unit)}".rstrip()


def _row(one: SizeSpeed, view: Explanation) -> tuple[str, ...]:
    change = "-" if one.change_samples is None else f"{one.change_samples:+.0f} samples"
    is_planned = one.size == view.planned_size
    return (
        str(one.size),
        f"{one.samples_per_s:.4g}",
        duration(one.left_s),
        "planned" if is_planned else change,
    )
