"""Shows a ``Frame``: a live page on a terminal, one line elsewhere."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bftrainer.demo.samples import Span, Use
from bftrainer.demo.watch import Frame
from bftrainer.model.views import TrainerView

TRAINER_STYLES = ("dodger_blue1", "orange1", "green3")
_OTHER_STYLES = {Use.ORDINARY: "grey58", Use.AWAY: "red"}


def line(frame: Frame) -> str:
    """Return a frame in one line, for logs and pipes."""
    names = _names(frame)
    nodes = " ".join(f"{n.node}={_what(n, names)}" for n in frame.nodes)
    sizes = " ".join(
        f"{t.record.spec.name}:{len(t.observed_nodes)}@{t.record.progress.epoch}"
        for t in frame.status.trainers
    )
    return f"{frame.elapsed_s:5.1f} s  {nodes}  |  {sizes}  |  {_counters(frame)}"


def page(frame: Frame) -> RenderableType:
    """Return everything at a glance."""
    names = _names(frame)
    styles = dict(zip(names, TRAINER_STYLES, strict=False))
    nodes = _table("NODE", "NOW")
    for node in frame.nodes:
        style = styles.get(node.trainer_id, _OTHER_STYLES.get(node.use, "dim"))
        is_faint = node.use is Use.STARTING
        nodes.add_row(node.node, Text(_what(node, names), style=f"dim {style}" * is_faint or style))
    trainers = _table("TRAINER", "STATE", "NODES", "EPOCH", "SAMPLES/S", "RESCALES", "LAST PAUSE")
    for style, view in zip(TRAINER_STYLES, frame.status.trainers, strict=False):
        name, *rest = _cells(frame, view)
        trainers.add_row(Text(name, style=style), *rest)
    last = [
        Text(f"{give_back.node} was given back for job {give_back.job_id}", style="dim")
        for give_back in frame.facts.give_backs[-2:]
    ]
    head = Text(f"bftrainer demo, {frame.elapsed_s:.0f} s", style="bold")
    return Group(head, nodes, trainers, Text(_counters(frame)), *last)


def _names(frame: Frame) -> dict[str, str]:
    return {t.record.trainer_id: t.record.spec.name for t in frame.status.trainers}


def _what(node: Span, names: dict[str, str]) -> str:
    name = names.get(node.trainer_id, "")
    match node.use:
        case Use.TRAINING:
            return name
        case Use.STARTING:
            return f"{name}(starting)"
        case Use.ORDINARY:
            return "job"
        case use:
            return use.value


def _cells(frame: Frame, view: TrainerView) -> tuple[str, ...]:
    record = view.record
    pauses_s = [r.pause_s for r in frame.facts.rescales if r.trainer_id == record.trainer_id]
    return (
        record.spec.name,
        record.state.value,
        str(len(view.observed_nodes)),
        f"{record.progress.epoch}/{record.spec.epochs}",
        f"{record.progress.samples_per_s:.0f}",
        str(record.rescales),
        f"{1000.0 * pauses_s[-1]:.0f} ms" if pauses_s else "-",
    )


def _counters(frame: Frame) -> str:
    status = frame.status
    return (
        f"rescales {len(frame.facts.rescales)}  given back {status.give_backs}  "
        f"preempted {status.preemptions}"
    )


def _table(*headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, min_width=len(header))
    return table
