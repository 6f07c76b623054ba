"""``bftrainer study stop STUDY``: all its trials end; results stay."""

from __future__ import annotations

import click

from bftrainer.cli.common import json_option, socket_option
from bftrainer.cli.study.lookup import find_study, study_argument
from bftrainer.cli.study.wish import print_wanted, wish
from bftrainer.study.wishes import stopped


@click.command()
@study_argument
@json_option
@socket_option
def stop(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """End all trials of STUDY for good; results and the best checkpoint stay."""
    study = find_study(study_name, socket_name)
    wish(study, socket_name, stopped, as_json=as_json)
    if as_json:
        print_wanted(study)
