"""``bftrainer study stop STUDY``: all its trials end; results stay."""

from __future__ import annotations

import click

from bftrainer.cli.common import socket_option
from bftrainer.cli.study.finding import find_study, study_argument, wish
from bftrainer.study.wishes import stopped


@click.command()
@study_argument
@socket_option
def stop(study_name: str, socket_name: str | None) -> None:
    """End all trials of STUDY for good; results and the best checkpoint stay."""
    wish(find_study(study_name, socket_name), socket_name, stopped)
