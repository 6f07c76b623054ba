"""``bftrainer top``: nodes and trainers on one screen, or in lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.cli.common import AWAY, FollowingClient
from bftrainer.cli.options import REPLAY, SOCKET, option, verb
from bftrainer.cli.output import is_terminal, print_lines
from bftrainer.cli.page_source import page_source
from bftrainer.cli.status import print_trainers, row_of
from bftrainer.cli.top_summary import NAMES, sorted_views, summary
from bftrainer.model.errors import BftError
from bftrainer.model.views import StatusView

if TYPE_CHECKING:
    from bftrainer.api.page.source import PageSource
    from bftrainer.cli.top_screen import TopScreen


@verb(
    option("-d, --delay SECONDS", "Time between two looks, in lines.",
           click.FloatRange(min=0.1, max=86400), 2.0, name="delay_s"),
    option("-n, --count N", "Print lines, and end after so many looks.", click.IntRange(min=1)),
    REPLAY, SOCKET,
    example="bftrainer top --replay journal.db",
)  # fmt: skip
def top(
    delay_s: float, count: int | None, replay: Path | None, socket_name: str | None
) -> int | None:
    """Show nodes and trainers on one screen until q; ? names the keys.

    Without a terminal, or with --count, it prints lines until Ctrl-C.
    """
    source = page_source(socket_name, replay)
    # Standard error is what the screen is drawn on, as in other programs of that kind.
    is_screen = is_terminal() and sys.stdin.isatty() and sys.stderr.isatty()
    if count is None and is_screen:
        from bftrainer.cli.top_screen import LiveScreen, ReplayScreen  # noqa: PLC0415 - slow

        screen: TopScreen
        if source.is_live:
            screen = LiveScreen(source, FollowingClient(socket_name))
        else:
            screen = ReplayScreen(source)
        screen.run(mouse=False)  # so that the terminal's own selection works
        return screen.return_code
    number = 0
    while True:
        _print_look(source)
        number += 1
        if number == count or not source.is_live:
            return None
        time.sleep(delay_s)


def _print_look(source: PageSource) -> None:
    """Print the present state; a daemon that is away for a while does not end the verb."""
    try:
        print_overview(source.status(), time.time())
    except BftError as error:
        if error.exit_code not in AWAY:
            raise
        print_lines(error.cause)
    print_lines("")


def print_overview(view: StatusView, now_s: float) -> None:
    """Print nodes, counts, and every trainer that has not ended."""
    trainers = [trainer for trainer in view.trainers if not trainer.record.state.is_final]
    rows = [row_of(trainer, now_s, NAMES) for trainer in sorted_views(trainers)]
    failures = [f"failure   {failure}" for failure in view.failures]
    print_lines(*summary(view, now_s), *failures, indent=10)
    print_lines("")
    if not rows:
        print_lines("no trainers")
    print_trainers(NAMES, rows)
