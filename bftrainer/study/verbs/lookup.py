"""Finds the study that a verb's argument STUDY names, and reads its state."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bftrainer.api.client import Client
from bftrainer.api.documents import CodecError, parse, view_of
from bftrainer.cli.common import connect
from bftrainer.cli.options import ANY_OWNER_OPTION, argument
from bftrainer.ground.regular_file import check_directory, read_file
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.quantities import quantity
from bftrainer.study.directory import (
    MOST_BYTES,
    SUFFIX,
    SUMMARY,
    StudyDirectory,
    is_running,
    is_study,
    no_study,
    only_loop,
    read_directory,
    unreadable,
)
from bftrainer.study.trial_table import (
    FORMER_SCHEMAS,
    LEFT,
    RUNNING,
    SUMMARY_SCHEMA,
    StudySummary,
    parameters_line,
    refreshed,
)

if TYPE_CHECKING:
    from bftrainer.study.loop import StudyLoop

STUDY = (argument("study_name", metavar="STUDY"), ANY_OWNER_OPTION)
YAML = (".yaml", ".yml")
PATIENCE_S = 2.0  # for a verb that holds the lock
_ID = re.compile(r"-[0-9a-f]{6}\Z")  # what an id has after the name


def find_study(text: str, socket_name: str | None = None) -> StudyDirectory:
    """Return the study of a name, an id, a directory or a YAML file (BFT-1633)."""
    return read_directory(find_path(text, socket_name))


def find_path(text: str, socket_name: str | None = None) -> Path:
    """Return the directory of a study, which may not exist; the daemon may know where it is."""
    path = Path(text)
    if is_study(path):
        return path
    name = text
    if is_document(path):
        from bftrainer.study.document import read_study  # noqa: PLC0415 - slow to import

        name = str(read_study(path).name)
    of_name = default_path(name)
    if is_study(of_name):
        return of_name
    of_id = default_path(_ID.sub("", name))
    if is_study(of_id) and read_directory(of_id).study_id == name:
        return of_id
    is_directory = os.path.isdir(path)  # noqa: PTH112 - ``Path.is_dir`` raises at a long name
    if not is_directory and os.sep not in text:  # a name, not a path
        path = of_name
    return _known_path(name, socket_name) or path


def _known_path(name: str, socket_name: str | None) -> Path | None:
    """Return where the trials of a study are that the daemon knows by its id or name.

    Raises:
        UsageError: BFT-1633, nothing of it can be seen from here, or several have this name.
    """
    try:
        path_of = _paths_by_id(name, connect(socket_name))
    except BftError:
        return None  # the daemon is away
    visible_ids = [study_id for study_id, path in path_of.items() if _has_id(path, study_id)]
    if len(visible_ids) == 1:
        return path_of[visible_ids[0]]
    if not path_of:
        return None
    where = ", ".join(f"{study_id} in {path_of[study_id]}" for study_id in visible_ids or path_of)
    if visible_ids:
        cause, next_step = f"Several studies are named {name}: {where}.", "Name one by its id."
    else:
        cause = f"The study {name} cannot be found from here: {where}."
        next_step = (
            "Go where that directory is seen. If it is gone, so is the study: end its trainers"
            " ('bftrainer status') with 'bftrainer cancel'."
        )
    raise UsageError("BFT-1633", cause, next_step, exit_code=ExitCode.NOT_FOUND)


def _paths_by_id(name: str, client: Client) -> dict[str, Path]:
    """Return the directories of the studies with this id, else of those with this name, by id."""
    ids = [view.study for view in client.studies()]
    if name in ids:
        ids = [name]
    path_of: dict[str, Path] = {}
    for study_id in ids:
        if name in (study_id, _ID.sub("", study_id)):
            trials = client.study(study_id).trials
            if trials:
                path_of[study_id] = Path(trials[0].checkpoint_dir).parent.parent  # DIR/trials/0000
    return path_of


def _has_id(path: Path, study_id: str) -> bool:
    """Return whether the study of this id is seen in a directory."""
    return is_study(path) and read_directory(path).study_id == study_id


def is_document(path: Path) -> bool:
    """Return whether a name is that of an existing YAML file."""
    return path.suffix in YAML and os.path.isfile(path)  # noqa: PTH113 - likewise


def default_path(name: str) -> Path:
    """Return where a study of this name is."""
    return Path(f"{name}{SUFFIX}")


def await_verb(path: Path) -> None:
    """Wait a little for whoever holds the study's lock: a verb lets it go, a loop does not."""
    deadline = time.monotonic() + PATIENCE_S
    while is_running(path) and time.monotonic() < deadline:
        time.sleep(0.05)


@contextlib.contextmanager
def open_loop(
    study: StudyDirectory,
    client: Client,
    say: Callable[[str], None],
    *,
    is_new_daemon: bool = False,
) -> Iterator[StudyLoop]:
    """Hold the study's lock and return its loop (BFT-1631, BFT-1624)."""
    try:
        from bftrainer.study.loop import StudyLoop  # noqa: PLC0415 - Optuna takes 0.2 s
        from bftrainer.study.storage import StudyStorage, repair  # noqa: PLC0415
        from bftrainer.study.verbs.plan import with_plan  # noqa: PLC0415
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] != "optuna":
            raise
        raise BftError(
            "BFT-1624",
            "Studies need Optuna, which is not installed here.",
            "Run: pip install 'bftrainer[study]'",
            exit_code=ExitCode.USAGE,
        ) from problem
    with only_loop(study.path):
        repair(study.storage)
        storage = StudyStorage(study.storage, study.study_id, study.document)
        yield StudyLoop(study, client, storage, say, with_plan(study), is_new_daemon=is_new_daemon)


def summary_of(path: Path, socket_name: str | None) -> StudySummary:
    """Return what a study has come to: its loop says so, or the daemon is asked beside."""
    summary = read_summary(path)
    if summary.state not in (RUNNING, LEFT) or is_running(path):
        return summary
    summary = replace(summary, state=LEFT)
    with contextlib.suppress(BftError):  # the daemon is away
        view = connect(socket_name).study(summary.study)
        return refreshed(summary, view, time.time())
    return summary


def read_summary(path: Path) -> StudySummary:
    """Return the summary as it was last written (BFT-1636, BFT-1635, BFT-1633)."""
    try:
        check_directory(path)
        value = parse(read_file(path / SUMMARY, MOST_BYTES))
        return view_of(StudySummary, SUMMARY_SCHEMA, value, formerly=FORMER_SCHEMAS)
    except FileNotFoundError as problem:
        if not is_study(path):
            raise no_study(path) from problem
        raise BftError(
            "BFT-1635",
            f"The study in {path} has not begun yet.",
            f"Run: bftrainer study run {path}",
            exit_code=ExitCode.NOT_FOUND,
        ) from problem
    except (OSError, CodecError) as problem:
        raise unreadable(
            str(path / SUMMARY), problem, "Remove it; the study's loop writes it again."
        ) from problem


def best_line(summary: StudySummary) -> str:
    """Return the best trial in one line."""
    row = summary.best_row
    if row is None or row.value is None:
        return "no trial has reported a value yet"
    return (
        f"trial {row.number}: {summary.metric} {quantity(row.value, 6)} at {row.units}"
        f" {summary.unit}; {parameters_line(row.parameters)}"
    )
