"""Prints a study's events line by line, on a terminal with a summary below them."""

from __future__ import annotations

import shutil
import time

import click

from bftrainer.cli.common import is_terminal
from bftrainer.cli.study.results import best_line
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError
from bftrainer.study.directory import StudyDirectory

REFRESH_S = 1.0


class Screen:
    """The output of the events of ``study run``."""

    def __init__(self, study: StudyDirectory, *, is_err: bool) -> None:
        self._study, self._is_err = study, is_err
        self._is_drawn = is_terminal() and not is_err
        self._bottom, self._read_s = "", 0.0

    def say(self, line: str) -> None:
        """Print one event."""
        if self._is_drawn:
            click.echo("\r\x1b[K", nl=False)
        click.echo(f"{time.strftime('%H:%M:%S')} {shown(line)}", err=self._is_err)
        if self._is_drawn:
            click.echo(self._summary(), nl=False)

    def close(self) -> None:
        """Take the summary away."""
        if self._is_drawn:
            click.echo("\r\x1b[K", nl=False)

    def _summary(self) -> str:
        """Return the summary as the loop last wrote it, in one line."""
        from bftrainer.cli.study.lookup import read_summary  # noqa: PLC0415 - pydantic is slow

        if time.monotonic() - self._read_s >= REFRESH_S:
            self._read_s = time.monotonic()
            try:
                found = read_summary(self._study.path)
            except BftError:
                return ""  # not written yet
            self._bottom = (
                f"{found.active} active, {found.waiting} waiting, {found.over} over;"
                f" {found.nodes} of {found.pool_nodes} nodes; best {best_line(found)}"
            )
        return shown(self._bottom)[: shutil.get_terminal_size().columns - 1] if self._bottom else ""
