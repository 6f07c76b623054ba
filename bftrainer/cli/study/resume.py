"""``bftrainer study resume STUDY``: a paused study goes on."""

from __future__ import annotations

import click

from bftrainer.cli.common import json_option, socket_option
from bftrainer.cli.study.lookup import find_study, study_argument
from bftrainer.cli.study.wish import print_wanted, says_over, wish
from bftrainer.study.directory import is_running
from bftrainer.study.wishes import resumed


@click.command()
@study_argument
@json_option
@socket_option
def resume(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """Let the trials of STUDY have nodes again."""
    study = find_study(study_name, socket_name)
    if not says_over(study, as_json=as_json):
        wish(study, socket_name, resumed, as_json=as_json)
        if not is_running(study.path):
            line = f"its trials go on; for new ones run: bftrainer study run {study.path}"
            click.echo(line, err=as_json)
    if as_json:
        print_wanted(study)
