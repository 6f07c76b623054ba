"""``bftrainer demo``: three real trainers on the idle nodes of a small cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftrainer.cli.common import json_option, print_json

if TYPE_CHECKING:
    from bftrainer.lab.demo.watch import Watch

LINE_INTERVAL_S = 2.0


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Where timeline.png and summary.json go.",
)
@click.option(
    "--nodes",
    "n_nodes",
    type=click.IntRange(3, 64),
    default=lambda: min(16, max(4, 2 * len(os.sched_getaffinity(0)))),
    show_default="2 for each processor, 4 to 16",
)
@click.option("--no-live", is_flag=True, help="A line every two seconds instead of a live page.")
@click.option("--lsf", "on_lsf", is_flag=True, help="On a stand-in of LSF, by LSF's commands.")
@json_option
def demo(out: Path, n_nodes: int, no_live: bool, on_lsf: bool, as_json: bool) -> None:
    """Watch three trainers live on the nodes that ordinary jobs leave idle.

    Needs no cluster: nodes are process groups on this machine. Everything is taken down again.
    """
    # Imported here to keep other verbs fast.
    from bftrainer.api.documents import document  # noqa: PLC0415
    from bftrainer.lab.demo.run import run_demo  # noqa: PLC0415
    from bftrainer.lab.demo.summary import as_text  # noqa: PLC0415

    screen = _Screen(is_live=not no_live, on_stderr=as_json)
    with screen:
        summary = run_demo(out, n_nodes, screen.see, screen.say, on_lsf=on_lsf)
    if as_json:
        print_json(document("demo", summary))
    else:
        click.echo(f"\n{as_text(summary)}")
        click.echo(f"  this run          {out / 'timeline.png'}, {out / 'summary.json'}")


class _Screen:
    """The live page on a terminal, otherwise lines."""

    def __init__(self, *, is_live: bool, on_stderr: bool) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.live import Live  # noqa: PLC0415

        self._console = Console(stderr=on_stderr)
        self._live: Live | None = None
        if is_live and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._said_s = 0.0

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def see(self, watch: Watch) -> None:
        """Show a watch."""
        from bftrainer.lab.demo.watch import line, page  # noqa: PLC0415

        if self._live is not None:
            self._live.update(page(watch), refresh=True)
        elif time.monotonic() - self._said_s >= LINE_INTERVAL_S or watch.is_over:
            self._said_s = time.monotonic()
            self._print(line(watch))

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self._print(sentence)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
