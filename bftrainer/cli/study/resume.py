"""``bftrainer study resume STUDY``: a paused study goes on."""

from __future__ import annotations

import click

from bftrainer.cli.common import socket_option
from bftrainer.cli.study.finding import find_study, says_over, study_argument, wish
from bftrainer.study.directory import is_running
from bftrainer.study.wishes import resumed


@click.command()
@study_argument
@socket_option
def resume(study_name: str, socket_name: str | None) -> None:
    """Let the trials of STUDY have nodes again."""
    study = find_study(study_name, socket_name)
    if says_over(study):
        return
    wish(study, socket_name, resumed)
    if not is_running(study.path):
        click.echo(f"its trials go on; for new ones run: bftrainer study run {study.path}")
