"""``bftrainer top``: nodes and trainers on one screen; the columns of trainers.

Where there is no terminal, the same is printed again and again.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence

import click

from bftrainer.api.client import Client
from bftrainer.cli.common import clock, connect, duration, is_terminal, socket_option
from bftrainer.model.columns import columns, shown
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerState
from bftrainer.model.views import StatusView, TrainerView

# name -> (header, > aligns right; what it shows at a time)
COLUMNS: dict[str, tuple[str, Callable[[TrainerView, float], str]]] = {
    "id": ("ID", lambda view, _: view.record.trainer_id),
    "name": ("NAME", lambda view, _: view.record.spec.name),
    "user": ("USER", lambda view, _: view.record.spec.user),
    "state": ("STATE", lambda view, _: state_of(view)),
    "nodes": (">NODES", lambda view, _: str(len(view.observed_nodes))),
    "plan": (">PLAN", lambda view, _: str(len(view.planned_nodes))),
    "limits": ("LIMITS", lambda view, _: f"{view.record.spec.n_min}:{view.record.spec.n_max}"),
    "epoch": (">EPOCH", lambda view, _: str(view.record.progress.epoch)),
    "step": (">STEP", lambda view, _: str(view.record.progress.step)),
    "samples": (">SAMPLES", lambda view, _: str(view.record.progress.samples)),
    "rate": (">SAMPLES/S", lambda view, _: _rate(view.record)),
    "done": (">DONE", lambda view, _: _percent(done(view.record))),
    "left": (">LEFT", lambda view, _: duration(left_s(view.record))),
    "metric": (">METRIC", lambda view, _: metric(view.record)),
    "rescales": (">RESCALES", lambda view, _: str(view.record.rescales)),
    "failures": (">FAILURES", lambda view, _: str(view.record.failures)),
    "weight": (">WEIGHT", lambda view, _: f"{view.record.spec.weight:g}"),
    "age": (">AGE", lambda view, now_s: duration(_age_s(view.record, now_s))),
    "submitted": ("SUBMITTED", lambda view, _: clock(view.record.submitted_s)),
    "started": ("STARTED", lambda view, _: clock(view.record.started_s)),
    "ended": ("ENDED", lambda view, _: clock(view.record.ended_s)),
    "nodelist": ("NODELIST", lambda view, _: ",".join(view.observed_nodes) or "-"),
    "checkpoints": ("CHECKPOINTS", lambda view, _: view.record.spec.checkpoint_dir),
    "reason": ("REASON", lambda view, _: reason_of(view)),
}
USUAL = (
    "id", "name", "user", "state", "nodes", "plan", "limits",
    "epoch", "step", "rate", "metric", "left", "age", "reason",
)  # fmt: skip


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the names in ``id,state``.

    Raises:
        UsageError: BFT-1048, there is no such column.
    """
    names = tuple(part.strip().lower() for part in text.split(","))
    if wrong := [name for name in names if name not in (*COLUMNS, "help")]:
        raise UsageError(
            "BFT-1048",
            f"There is no column {wrong[0][:40]!r}.",
            f"Choose from: {', '.join(COLUMNS)}.",
        )
    return names


def list_columns() -> None:
    """Print the names of all columns."""
    for name in COLUMNS:
        click.echo(name)


def headers_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the headers of columns."""
    return tuple(COLUMNS[name][0] for name in names)


def row_of(view: TrainerView, now_s: float, names: Sequence[str] = USUAL) -> tuple[str, ...]:
    """Return a trainer's cells."""
    return tuple(COLUMNS[name][1](view, now_s) for name in names)


def state_of(view: TrainerView) -> str:
    """Return its state; or that it is held, waits at its rung, or may train on unheard."""
    record = view.record
    if record.state.is_final:
        return str(record.state)
    if view.unheard_nodes:
        return "unheard"
    if record.held_s is not None:
        return "held"
    return "at rung" if record.rung_s is not None else str(record.state)


def reason_of(view: TrainerView) -> str:
    """Say why it does not train, or what troubles it."""
    return view.trouble or view.waits or view.record.reason


def done(record: TrainerRecord) -> float | None:
    """Return which part of its training is done, from 0 to 1; None: its length is not known."""
    spec, progress = record.spec, record.progress
    if record.state is TrainerState.FINISHED:
        return 1.0
    if total := progress.total or spec.samples:
        return min(1.0, progress.samples / total)
    return min(1.0, progress.epoch / spec.epochs) if spec.epochs else None


def left_s(record: TrainerRecord) -> float | None:
    """Return how long it still trains at its present rate; None: not known, or it does not."""
    total, progress = record.progress.total or record.spec.samples, record.progress
    if not total or not progress.samples_per_s or record.state.is_final:
        return None
    return max(0.0, (total - progress.samples) / progress.samples_per_s)


def metric(record: TrainerRecord) -> str:
    """Return what its script reported last (``run.report``)."""
    return f"{record.reports[-1].value:.4g}" if record.reports else "-"


def _rate(record: TrainerRecord) -> str:
    rate = record.progress.samples_per_s
    return f"{rate:.4g}" if rate else "-"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100.0 * part:.1f}%"


def _age_s(record: TrainerRecord, now_s: float) -> float:
    return (record.ended_s or now_s) - record.submitted_s


NAMES = (
    *("id", "name", "user", "state", "nodes", "limits", "epoch", "rate"),
    *("metric", "done", "left", "reason"),
)
_AWAY = (ExitCode.DAEMON_UNREACHABLE, ExitCode.TIMEOUT)


@click.command()
@click.option(
    "-d",
    "--delay",
    "delay_s",
    type=click.FloatRange(min=0.1, max=86400),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), metavar="N", help="End after so many looks."
)
@socket_option
def top(delay_s: float, count: int | None, socket_name: str | None) -> None:
    """Show nodes and trainers on one screen until q or Ctrl-C."""
    client, number = connect(socket_name), 0
    with _keys() as quits, _screen() as show:
        while True:
            show(_looked(client, is_first=not number))
            number += 1
            if number == count or quits(delay_s):
                return


def _looked(client: Client, *, is_first: bool) -> list[str]:
    """Return the present state; a daemon that is away for a while does not end the verb."""
    try:
        return lines_of(client.status(), time.time())
    except BftError as error:
        if is_first or error.exit_code not in _AWAY:
            raise
        return [shown(error.cause)]


def lines_of(view: StatusView, now_s: float) -> list[str]:
    """Return the overview: nodes, counts, and every trainer that has not ended."""
    open_ones = [one for one in view.trainers if not one.record.state.is_final]
    trains = sum(bool(one.observed_nodes) for one in open_ones)
    used = sum(len(one.observed_nodes) for one in open_ones)
    rate = sum(one.record.progress.samples_per_s for one in open_ones)
    ended = len(view.trainers) - len(open_ones)
    clock = time.strftime("%H:%M:%S", time.localtime(now_s))
    text = (
        f"bftrainer {clock}, {shown(view.batch_system)}\n"
        f"nodes     {used} train, {view.nodes_held} held, {view.nodes_requested} requested, "
        f"{view.nodes_idle} idle, {view.nodes_total} in all\n"
        f"trainers  {trains} train, {len(open_ones) - trains} wait, {ended} ended, "
        f"{rate:.4g} samples/s together"
    )
    lines = [*text.splitlines(), *(f"failure   {shown(one)}" for one in view.failures), ""]
    rows = [row_of(one, now_s, NAMES) for one in sorted(open_ones, key=_order)]
    table = columns(headers_of(NAMES), rows) if rows else "no trainers"
    return [*lines, *table.splitlines()]


def _order(view: TrainerView) -> bool:
    """Those that train come first, each in order of submission."""
    return not view.observed_nodes


@contextlib.contextmanager
def _screen() -> Iterator[Callable[[list[str]], None]]:
    """Yield what shows lines in place of the last ones; without a terminal after them."""
    if not is_terminal():
        yield lambda lines: click.echo("\n".join(lines) + "\n")
        return
    from rich.console import Console  # noqa: PLC0415 - takes 0.1 s
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(lines: list[str]) -> None:
            fits = lines[: console.height]
            if len(lines) > len(fits):
                fits[-1] = f"{len(lines) - len(fits) + 1} more; see 'bftrainer status'"
            text = Text("\n".join(fits), no_wrap=True, overflow="crop")
            live.update(text, refresh=True)

        yield show


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield what waits for a time, or until q is pressed; without a terminal it only waits."""
    if not (sys.stdin.isatty() and is_terminal()):
        yield _only_waits
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield lambda delay_s: _is_pressed(fd, time.monotonic() + delay_s)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _only_waits(delay_s: float) -> bool:
    time.sleep(delay_s)
    return False


def _is_pressed(fd: int, until_s: float) -> bool:
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([fd], [], [], left_s)[0]:
            pressed = os.read(fd, 64)
            if not pressed or b"q" in pressed.lower():
                return True
    return False
