"""``bftrainer study add STUDY N``: more trials."""

from __future__ import annotations

from dataclasses import replace

import click

from bftrainer.cli.common import json_option, socket_option
from bftrainer.cli.study.lookup import find_study, study_argument
from bftrainer.cli.study.wish import print_wanted
from bftrainer.model.errors import UsageError
from bftrainer.study.directory import is_running
from bftrainer.study.wishes import Wishes, change_wishes


@click.command()
@study_argument
@click.argument("count", metavar="N", type=click.IntRange(1, 100_000))
@json_option
@socket_option
def add(study_name: str, count: int, socket_name: str | None, *, as_json: bool) -> None:
    """Add N trials to STUDY, which may be over already."""
    study = find_study(study_name, socket_name)
    document = study.document
    if "trials" not in document.rule_settings() or isinstance(document.configurations, tuple):
        raise UsageError(
            "BFT-1634",
            f"The study {document.name} cannot have more trials: its rule or its list of"
            " configurations fixes their number.",
            "Begin another study.",
        )

    def enlarged(before: Wishes) -> Wishes:
        if before.is_stopped:
            raise UsageError(
                "BFT-1637", f"The study {document.name} was stopped.", "Begin another study."
            )
        return replace(before, more=before.more + count)

    wishes = change_wishes(study.path, enlarged)
    if as_json:
        print_wanted(study)
        return
    total = document.rule_settings(wishes.more)["trials"]
    then = "" if is_running(study.path) else f"; run: bftrainer study run {study.path}"
    click.echo(f"{document.name} has {total} trials now{then}")
