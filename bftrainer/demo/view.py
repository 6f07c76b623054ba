"""Shows a ``LiveFrame``: a live page on a terminal, one line elsewhere. Called by ``run``."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from bftrainer.demo.samples import NodeUse, Use
from bftrainer.demo.watch import LiveFrame
from bftrainer.model.views import TrainerView

TRAINER_STYLES = ("dodger_blue1", "orange1", "green3", "orchid", "sky_blue1", "orange_red1")
_USE_STYLES = {
    Use.ORDINARY: "grey58",
    Use.AWAY: "red",
    Use.STARTING: "dim",
    Use.HELD: "dim red",
    Use.FREE: "grey37",
}


def page(frame: LiveFrame) -> RenderableType:
    """Return everything at a glance."""
    return Group(_head(frame), _nodes(frame), _trainers(frame), _foot(frame))


def line(frame: LiveFrame) -> str:
    """Return the same in one line, for logs and pipes."""
    names = {t.record.trainer_id: t.record.spec.name for t in frame.status.trainers}
    nodes = " ".join(f"{n.name}={_what(frame, n.name, names)}" for n in frame.nodes)
    sizes = " ".join(
        f"{t.record.spec.name}:{len(t.observed_nodes)}/{len(t.planned_nodes)}"
        f"@{t.record.progress.epoch}"
        for t in frame.status.trainers
    )
    return f"{frame.elapsed_s:5.1f} s  {nodes}  |  {sizes}  |  {_counters(frame)}"


def _what(frame: LiveFrame, node: str, names: Mapping[str, str]) -> str:
    seen = _seen(frame, node)
    match seen.use:
        case Use.TRAINING:
            return names.get(seen.trainer_id, seen.trainer_id)
        case Use.ORDINARY:
            return "job"
        case use:
            return use.value


def _seen(frame: LiveFrame, node: str) -> NodeUse:
    return frame.uses.get(node) or NodeUse(node=node, use=Use.AWAY)


def _counters(frame: LiveFrame) -> str:
    status = frame.status
    share = f"{frame.training_s / frame.offered_s:.2f}" if frame.offered_s > 0 else "-"
    return (
        f"rescales {len(frame.facts.rescales)}  give-backs {status.give_backs}  "
        f"preemptions {status.preemptions}  training/offered {share}"
    )


def _head(frame: LiveFrame) -> RenderableType:
    status = frame.status
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        Text("bftrainer demo", style="bold"),
        Text(f"on {status.batch_system}", style="dim"),
        ProgressBar(total=frame.total_s, completed=min(frame.elapsed_s, frame.total_s), width=30),
        Text(f"{frame.elapsed_s:4.0f} of {frame.total_s:.0f} s"),
    )
    return grid


def _nodes(frame: LiveFrame) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Nodes", title_justify="left")
    for name, width in (("NODE", 6), ("STATE", 11), ("USE", 10), ("TRAINER", 12), ("NOW", 10)):
        table.add_column(name, min_width=width)
    names = {t.record.trainer_id: t.record.spec.name for t in frame.status.trainers}
    styles = dict(zip(names, TRAINER_STYLES, strict=False))
    for node in frame.nodes:
        seen = _seen(frame, node.name)
        colour = styles.get(seen.trainer_id, "")
        is_training = seen.use is Use.TRAINING
        mark = "█" if is_training else "▒" if seen.use is Use.ORDINARY else "·"
        table.add_row(
            Text(node.name),
            Text(node.state),
            Text(node.use),
            Text(names.get(seen.trainer_id, ""), style=colour),
            Text(
                f"{mark * 2} {seen.use.value}",
                style=colour if is_training else _USE_STYLES.get(seen.use, ""),
            ),
        )
    return table


def _trainers(frame: LiveFrame) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Trainers", title_justify="left")
    table.add_column("TRAINER", min_width=12)
    table.add_column("STATE", min_width=9)
    for name in ("PLANNED", "REQUESTED", "OBSERVED", "EPOCH", "SAMPLES/S", "RESCALES", "PAUSE"):
        table.add_column(name, justify="right", min_width=len(name))
    for style, view in zip(TRAINER_STYLES, frame.status.trainers, strict=False):
        table.add_row(*_trainer_row(frame, view, style))
    return table


def _trainer_row(frame: LiveFrame, view: TrainerView, style: str) -> list[Text]:
    record = view.record
    pause_s = frame.last_pause_s(record.trainer_id)
    speed = record.progress.samples_per_s
    epochs = "" if record.spec.epochs is None else f"/{record.spec.epochs}"
    return [
        Text(record.spec.name, style=style),
        Text(record.state.value),
        Text(str(len(view.planned_nodes))),
        Text(str(len(view.requested_nodes))),
        Text(str(len(view.observed_nodes)), style="bold"),
        Text(f"{record.progress.epoch}{epochs}"),
        Text(f"{speed:.0f}" if speed > 0 else "-"),
        Text(str(record.rescales)),
        Text("-" if pause_s is None else f"{1000.0 * pause_s:.0f} ms"),
    ]


def _foot(frame: LiveFrame) -> RenderableType:
    lines = [Text(_counters(frame))]
    lines += [
        Text(
            f"{g.at_s - frame.started_s:5.1f} s  {g.node} given back for job {g.job_id}",
            style="dim",
        )
        for g in frame.recent_give_backs
    ]
    return Group(*lines)
