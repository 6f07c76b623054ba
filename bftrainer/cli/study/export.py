"""``bftrainer study export STUDY``: all trials, as CSV or as one JSON document."""

from __future__ import annotations

import csv
import sys

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import json_option, print_json, socket_option
from bftrainer.cli.study.lookup import find_path, study_argument, summary_of

_COLUMNS = (
    *("number", "stage", "value", "units", "budget", "node_s", "bracket", "parent", "attempt"),
    *("began_s", "ended_s", "reason"),
)


@click.command()
@study_argument
@json_option
@socket_option
def export(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """Print every trial of STUDY with its parameters; --json has all its values, too."""
    summary = summary_of(find_path(study_name, socket_name), socket_name)
    if as_json:
        print_json(document("study", summary))
        return
    names = list(summary.trials[0].parameters) if summary.trials else []
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*_COLUMNS, *names])
    for row in summary.trials:
        given = [getattr(row, name) for name in _COLUMNS]
        writer.writerow([*given, *(row.parameters.get(name) for name in names)])
