"""``bftrainer study pause STUDY``: its trials give their nodes back and wait."""

from __future__ import annotations

import click

from bftrainer.cli.common import json_option, socket_option
from bftrainer.cli.study.lookup import find_study, study_argument
from bftrainer.cli.study.wish import print_wanted, says_over, wish
from bftrainer.study.wishes import paused


@click.command()
@study_argument
@json_option
@socket_option
def pause(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """Take all nodes from the trials of STUDY, after checkpoints; 'resume' is the way back."""
    study = find_study(study_name, socket_name)
    if not says_over(study, as_json=as_json):
        wish(study, socket_name, paused, as_json=as_json)
    if as_json:
        print_wanted(study)
