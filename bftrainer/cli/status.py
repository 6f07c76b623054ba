"""``bftrainer status``: an overview of the daemon and its trainers, or one trainer in full.

Prints the daemon's ``StatusView`` or ``TrainerView`` as a table or JSON.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click

from bftrainer.api.client import Client
from bftrainer.api.documents import document
from bftrainer.cli.common import (
    clock,
    connect,
    duration,
    is_terminal,
    json_option,
    print_json,
    print_table,
    socket_option,
    trainer_id_argument,
)
from bftrainer.cli.top import (
    USUAL,
    done,
    headers_of,
    left_s,
    list_columns,
    parse_columns,
    row_of,
    state_of,
)
from bftrainer.daemon.explain.lives import kept, restart_sentences
from bftrainer.model.columns import shown
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from bftrainer.model.views import StatusView, TrainerView

ENDED_SHOWN = 10  # ended trainers that the table still shows


@click.command()
@trainer_id_argument(is_required=False)
@click.option("--all", "show_all", is_flag=True, help="Show every trainer that has ended, too.")
@click.option(
    "--watch",
    "watch_s",
    type=click.FloatRange(min=0.1, max=86400),
    metavar="SECONDS",
    help="Show it again every SECONDS until interrupted.",
)
@click.option(
    "-o",
    "names",
    type=parse_columns,
    metavar="COLUMN[,COLUMN...]",
    help="Print these columns only, of all trainers or of ID; 'help' lists them.",
)
@json_option
@socket_option
def status(
    trainer_id: str | None,
    watch_s: float | None,
    names: tuple[str, ...] | None,
    socket_name: str | None,
    *,
    show_all: bool,
    as_json: bool,
) -> None:
    """Show the daemon and its trainers, or the trainer ID in full."""
    if names and "help" in names:
        list_columns()
        return
    client = connect(socket_name)
    while True:
        if names and not as_json:
            _print_columns(client, trainer_id, names, show_all=show_all)
        else:
            _show_once(client, trainer_id, show_all=show_all, as_json=as_json, watch_s=watch_s)
        if watch_s is None:
            return
        time.sleep(watch_s)
        if is_terminal() and not as_json:
            click.clear()


def _show_once(
    client: Client, trainer_id: str | None, *, show_all: bool, as_json: bool, watch_s: float | None
) -> None:
    view = client.status() if trainer_id is None else client.trainer(trainer_id)
    if as_json:
        name = "status" if trainer_id is None else "trainer"
        print_json(document(name, view), is_compact=watch_s is not None)
    elif isinstance(view, StatusView):
        _print_status(view, show_all=show_all)
    else:
        _print_trainer(view)


def _print_status(view: StatusView, *, show_all: bool) -> None:
    now_s = time.time()
    last = "none yet"
    if view.last_decision_s is not None:
        ago = duration(now_s - view.last_decision_s)
        last = f"{ago} ago in {view.last_decision_ms:.1f} ms"
    click.echo(
        f"daemon      pid {view.pid}, incarnation {view.incarnation}, "
        f"up {duration(now_s - view.started_s)}, policy {view.policy_hash[:12]}\n"
        f"system      {shown(view.batch_system)}, last poll: "
        f"{'complete' if view.observed == 'present' else shown(view.observed)}\n"
        f"nodes       {view.nodes_held} held, {view.nodes_requested} requested, "
        f"{view.nodes_idle} idle, {view.nodes_total} in all\n"
        f"decisions   {view.decisions}, last {last}\n"
        f"so far      {view.rescales} rescales, {view.give_backs} nodes given back, "
        f"{view.preemptions} taken by the batch system"
    )
    notes = (
        ("drained", [view.draining] if view.draining else ()),
        ("policy", view.policy_notes),
        ("back-off", [view.back_off] if view.back_off else ()),
        ("slow node", view.slow_nodes),
        ("bad node", view.cooling_nodes),
        ("late agent", view.late_agents),
        ("cut", view.cuts),
        ("left out", view.left_out),
        ("failure", view.failures),
    )
    for kind, texts in notes:
        for text in texts:
            click.echo(f"{kind:11} {shown(text)}")
    shown_ones = recent(view.trainers, show_all=show_all)
    rows = [row_of(item, now_s) for item in shown_ones]
    click.echo("" if rows else "\nno trainers; submit one with 'bftrainer submit'")
    print_table(headers_of(USUAL), rows)
    if view.other_trainers:
        click.echo(f"{view.other_trainers} of other users are not shown")
    there = {item.record.trainer_id for item in shown_ones}
    for sentence in _left_out(
        [v.record for v in view.trainers if v.record.trainer_id not in there]
    ):
        click.echo(sentence)


def _left_out(hidden: Sequence[TrainerRecord]) -> Iterator[str]:
    """Say how many trainers are not shown."""
    trials = [(r.spec.trial.study, r.state) for r in hidden if r.spec.trial]
    for study, count in Counter(study for study, state in trials if not state.is_final).items():
        yield f"{count} trials of {shown(study)} have no nodes; see 'bftrainer study status'"
    if count := len(hidden) - len(trials):
        yield f"{count} more have ended; see --all"


def recent(views: Sequence[TrainerView], *, show_all: bool) -> tuple[TrainerView, ...]:
    """Return the trainers without trials that have no nodes, and what ended long ago."""
    if show_all:
        return tuple(views)
    views = [item for item in views if not item.record.spec.trial or item.observed_nodes]
    ended = [item for item in views if item.record.state.is_final]
    hidden = {id(item) for item in ended[:-ENDED_SHOWN]}
    return tuple(item for item in views if id(item) not in hidden)


def _print_columns(
    client: Client, trainer_id: str | None, names: tuple[str, ...], *, show_all: bool
) -> None:
    views = (
        recent(client.trainers(), show_all=show_all)
        if trainer_id is None
        else (client.trainer(trainer_id),)
    )
    now_s = time.time()
    print_table(headers_of(names), [row_of(view, now_s, names) for view in views])


def _print_trainer(view: TrainerView) -> None:
    for name, value in trainer_lines(view):
        click.echo(f"{name:<13} {shown(value)}")


def _why(view: TrainerView) -> str:
    return view.trouble if view.unheard_nodes else view.waits or view.record.reason


def trainer_lines(view: TrainerView) -> list[tuple[str, str]]:
    """Return everything about one trainer as names and values."""
    record, spec, progress = view.record, view.record.spec, view.record.progress
    work = "as the script says"
    if spec.epochs is not None:
        work = f"{spec.epochs} epochs"
    elif spec.samples is not None:
        work = f"{spec.samples} samples"
    each = "" if spec.workers_per_node == 1 else f", {spec.workers_per_node} workers on each"
    return [
        ("id", record.trainer_id),
        ("name", spec.name),
        ("user", spec.user),
        (
            "state",
            f"{state_of(view)}{f': {why}' if (why := _why(view)) else ''}",
        ),
        *([("asks for", request)] if (request := _request(spec)) else []),
        ("size", f"{len(view.observed_nodes)} of {spec.n_min} to {spec.n_max} nodes{each}"),
        ("planned", _node_list(view.planned_nodes)),
        ("requested", _node_list(view.requested_nodes)),
        ("observed", _node_list(view.observed_nodes)),
        ("work", work),
        ("done", f"epoch {progress.epoch}, step {progress.step}, {progress.samples} samples"),
        ("rate", f"{progress.samples_per_s:.4g} samples/s"),
        *([("progress", part)] if (part := _progress(record)) else []),
        *([("metric", text)] if (text := _metric(record)) else []),
        *([("kept", part)] if (part := kept(record)) else []),
        *([("trial", f"{tag.number} of study {tag.study}")] if (tag := spec.trial) else []),
        ("rescales", f"{record.rescales}, generation {record.last_generation}"),
        ("failures", f"{record.failures}{f' of {spec.max_failures}' if spec.max_failures else ''}"),
        *([("trouble", view.trouble)] if view.trouble else []),
        ("pause", _costs(view)),
        *(("restart", sentence) for sentence in restart_sentences(record)),
        *([("after", ", ".join(after))] if (after := (*spec.after, *spec.after_any)) else []),
        *([("begin", clock(spec.begin_s))] if spec.begin_s is not None else []),
        ("submitted", clock(record.submitted_s)),
        ("started", clock(record.started_s)),
        ("ended", clock(record.ended_s)),
        ("script", " ".join((spec.script, *spec.args))),
        ("directory", spec.cwd),
        ("interpreter", spec.interpreter),
        (
            "checkpoints",
            f"{spec.checkpoint_dir} at least every {duration(spec.checkpoint_interval_s)}",
        ),
    ]


def _progress(record: TrainerRecord) -> str:
    """Return how much is done and how long the rest takes; "": not known."""
    part, seconds = done(record), left_s(record)
    if part is None:
        return ""
    return f"{100.0 * part:.1f}%{'' if seconds is None else f', {duration(seconds)} left'}"


def _metric(record: TrainerRecord) -> str:
    """Return what it reported last, and when; "": nothing."""
    return "".join(f"{one.value:.6g} after epoch {one.epoch}" for one in record.reports[-1:])


def _request(spec: TrainerSpec) -> str:
    """Return what it asks of its nodes, as it was written."""
    options = (("--gres", spec.gres), ("--constraint", spec.constraint))
    return " ".join(f"{name} {value}" for name, value in options if value)


def _costs(view: TrainerView) -> str:
    costs: dict[str, Any] = {
        "up": view.record.costs.rescale_up_s,
        "down": view.record.costs.rescale_down_s,
    }
    return ", ".join(
        f"{name} {'not measured' if value is None else f'{value:.2f} s'}"
        for name, value in costs.items()
    )


def _node_list(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes) or "none"
