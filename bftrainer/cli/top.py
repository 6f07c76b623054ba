"""``bftrainer top``: nodes and trainers on one screen, shown again and again.

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
from collections.abc import Callable, Iterator

import click

from bftrainer.api.client import Client
from bftrainer.cli.common import connect, is_terminal, socket_option
from bftrainer.cli.trainer_columns import headers_of, row_of
from bftrainer.model.columns import columns, shown
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.views import StatusView, TrainerView

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
