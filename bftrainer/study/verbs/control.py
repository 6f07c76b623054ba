"""``bftrainer study add``, ``pause``, ``resume``, ``stop``: a user's wishes of a running study."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import click

from bftrainer.api.documents import schema
from bftrainer.cli.common import connect
from bftrainer.cli.options import JSON, SOCKET, argument, verb
from bftrainer.cli.output import print_json, print_lines
from bftrainer.model.columns import counted, shown
from bftrainer.model.errors import BftError, UsageError
from bftrainer.study.directory import StudyDirectory, Wishes, change_wishes, is_running, read_wishes
from bftrainer.study.trial_table import FAILED, OVER, STOPPED
from bftrainer.study.verbs.lookup import STUDY, await_verb, find_study, open_loop, read_summary


def wish(
    study: StudyDirectory,
    socket_name: str | None,
    change: Callable[[Wishes], Wishes],
    *,
    as_json: bool,
) -> None:
    """Change what is wanted of a study, and carry it out if no loop does."""
    say = partial(print_lines, err=as_json)
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
    print_lines(f"{shown(summary.name)} is {summary.state}; nothing is changed", err=as_json)
    return True


def print_wanted(study: StudyDirectory) -> None:
    """Print the document of ``--json``."""
    wishes = read_wishes(study.path)
    print_json(
        {
            "schema": schema("study-wishes"),
            "study": study.study_id,
            "directory": str(study.path),
            "is_paused": wishes.is_paused,
            "is_stopped": wishes.is_stopped,
            # That its rule begins, with those added; None: not a fixed number.
            "trials": study.document.rule_settings(wishes.more).get("trials"),
            # Its loop obeys within a second, and draws new trials.
            "is_running": is_running(study.path),
        }
    )


@verb(
    *STUDY,
    argument("count", click.IntRange(1, 100_000), metavar="N"),
    JSON,
    SOCKET,
    example="bftrainer study add digits 20",
)
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
    print_lines(f"{document.name} has {counted(total, 'trial')} now{then}")


@verb(*STUDY, JSON, SOCKET, example="bftrainer study pause digits")
def pause(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """Take all nodes from the trials of STUDY, after checkpoints; 'resume' is the way back."""
    _wish(study_name, socket_name, as_json=as_json, is_paused=True)


@verb(*STUDY, JSON, SOCKET, example="bftrainer study resume digits")
def resume(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """Let the trials of STUDY have nodes again."""
    _wish(study_name, socket_name, as_json=as_json, is_paused=False)


@verb(*STUDY, JSON, SOCKET, example="bftrainer study stop digits")
def stop(study_name: str, socket_name: str | None, *, as_json: bool) -> None:
    """End all trials of STUDY for good; results and the best checkpoint stay."""
    _wish(study_name, socket_name, as_json=as_json, is_stopped=True)


def _wish(name: str, socket_name: str | None, *, as_json: bool, **changes: bool) -> None:
    """Wish something of a study; one that is over can only be stopped."""
    study = find_study(name, socket_name)
    if "is_stopped" in changes or not says_over(study, as_json=as_json):
        wish(study, socket_name, partial(replace, **changes), as_json=as_json)
        if changes.get("is_paused") is False and not is_running(study.path):
            line = f"its trials go on; for new ones run: bftrainer study run {study.path}"
            print_lines(line, err=as_json)
    if as_json:
        print_wanted(study)
