"""Shows a ``Watch``: a live page on a terminal, one line elsewhere."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bftrainer.lab.demo.samples import Span, Use
from bftrainer.lab.demo.watch import Watch
from bftrainer.model.views import TrainerView

TRAINER_STYLES = ("dodger_blue1", "orange1", "green3")
_OTHER_STYLES = {Use.ORDINARY: "grey58", Use.AWAY: "red"}


def line(watch: Watch) -> str:
    """Return it in one line, for logs and pipes."""
    names = _names(watch)
    nodes = " ".join(f"{n.node}={_what(n, names)}" for n in watch.timeline.now())
    sizes = " ".join(
        f"{t.record.spec.name}:{len(t.observed_nodes)}@{t.record.progress.epoch}"
        for t in watch.status.trainers
    )
    return f"{watch.elapsed_s:5.1f} s  {nodes}  |  {sizes}  |  {_counters(watch)}"


def page(watch: Watch) -> RenderableType:
    """Return everything at a glance."""
    names = _names(watch)
    styles = dict(zip(names, TRAINER_STYLES, strict=False))
    nodes = _table("NODE", "NOW")
    for node in watch.timeline.now():
        style = styles.get(node.trainer_id, _OTHER_STYLES.get(node.use, "dim"))
        is_faint = node.use is Use.STARTING
        nodes.add_row(node.node, Text(_what(node, names), style=f"dim {style}" * is_faint or style))
    trainers = _table("TRAINER", "STATE", "NODES", "EPOCH", "SAMPLES/S", "RESCALES")
    for style, view in zip(TRAINER_STYLES, watch.status.trainers, strict=False):
        trainers.add_row(Text(view.record.spec.name, style=style), *_cells(view))
    head = Text(f"bftrainer demo, {watch.elapsed_s:.0f} s", style="bold")
    return Group(head, nodes, trainers, Text(_counters(watch)))


def _names(watch: Watch) -> dict[str, str]:
    return {t.record.trainer_id: t.record.spec.name for t in watch.status.trainers}


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


def _cells(view: TrainerView) -> tuple[str, ...]:
    record = view.record
    return (
        record.state.value,
        str(len(view.observed_nodes)),
        f"{record.progress.epoch}/{record.spec.epochs}",
        f"{record.progress.samples_per_s:.0f}",
        str(record.rescales),
    )


def _counters(watch: Watch) -> str:
    status = watch.status
    return (
        f"rescales {status.rescales}  given back {status.give_backs}  "
        f"preempted {status.preemptions}"
    )


def _table(*headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, min_width=len(header))
    return table
