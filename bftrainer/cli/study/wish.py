"""What the user wants of a study: written down, and carried out at once if no loop runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import connect, print_json
from bftrainer.cli.study.lookup import await_verb, open_loop, read_summary
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError
from bftrainer.study.directory import StudyDirectory, is_running
from bftrainer.study.outcome import FAILED, OVER, STOPPED
from bftrainer.study.wishes import Wishes, change_wishes, read_wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is wanted of a study, as ``--json`` prints it."""

    study: str  # its id
    directory: str
    is_paused: bool
    is_stopped: bool
    trials: int | None  # that its rule begins, with those added; None: not a fixed number
    is_running: bool  # its loop runs: it obeys within a second, and draws new trials


def wish(
    study: StudyDirectory,
    socket_name: str | None,
    change: Callable[[Wishes], Wishes],
    *,
    as_json: bool,
) -> None:
    """Change what is wanted of a study, and carry it out if no loop does."""
    say = partial(click.echo, err=as_json)
    change_wishes(study.path, change)
    await_verb(study.path)
    try:
        with open_loop(study, connect(socket_name), say) as loop:
            loop.obey()
    except BftError as error:
        if error.code != "BFT-1631":
            raise
        say("its loop obeys within a second")


def says_over(study: StudyDirectory, *, as_json: bool) -> bool:
    """Say that a study is over, if it is: trials may have been added since."""
    if not study.summary.exists():
        return False  # it has not begun
    summary = read_summary(study.path)
    rule = study.document.rule_with(read_wishes(study.path).more).describe()
    is_enlarged = dict(summary.rule) != json.loads(json.dumps(dict(rule)))
    if summary.state not in (OVER, FAILED, STOPPED) or (summary.state == OVER and is_enlarged):
        return False
    click.echo(f"{shown(summary.name)} is {summary.state}; nothing is changed", err=as_json)
    return True


def print_wanted(study: StudyDirectory) -> None:
    """Print the document of ``--json``."""
    wishes = read_wishes(study.path)
    wanted = Wanted(
        study=study.study_id,
        directory=str(study.path),
        is_paused=wishes.is_paused,
        is_stopped=wishes.is_stopped,
        trials=study.document.rule_settings(wishes.more).get("trials"),
        is_running=is_running(study.path),
    )
    print_json(document("study-wishes", wanted))
