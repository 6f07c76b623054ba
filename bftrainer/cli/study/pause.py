"""``bftrainer study pause STUDY``: its trials give their nodes back and wait."""

from __future__ import annotations

import click

from bftrainer.cli.common import socket_option
from bftrainer.cli.study.finding import find_study, says_over, study_argument, wish
from bftrainer.study.wishes import paused


@click.command()
@study_argument
@socket_option
def pause(study_name: str, socket_name: str | None) -> None:
    """Take all nodes from the trials of STUDY, after checkpoints; 'resume' is the way back."""
    study = find_study(study_name, socket_name)
    if not says_over(study):
        wish(study, socket_name, paused)
