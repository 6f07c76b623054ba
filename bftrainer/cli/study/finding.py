"""Finds the study that a verb's argument STUDY names, and what is known of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bftrainer.api.client import Client
from bftrainer.api.codec import CodecError, parse
from bftrainer.api.documents import view_of
from bftrainer.cli.common import connect
from bftrainer.errors import BftError, ExitCode
from bftrainer.study.directory import (
    SUFFIX,
    SUMMARY,
    StudyDirectory,
    is_running,
    is_study,
    no_study,
    only_loop,
    read_directory,
)
from bftrainer.study.outcome import LEFT, RUNNING, StudySummary, refreshed
from bftrainer.study.wishes import Wishes, change_wishes

if TYPE_CHECKING:
    from bftrainer.study.loop import StudyLoop

Command = TypeVar("Command", bound=Callable[..., Any])
_YAML = (".yaml", ".yml")


def study_argument(command: Command) -> Command:
    """Add the argument STUDY."""
    return click.argument("study_name", metavar="STUDY")(command)


def find_study(text: str) -> StudyDirectory:
    """Return the study of a name, a directory or a YAML file (BFT-1633)."""
    return read_directory(find_path(text))


def find_path(text: str) -> Path:
    """Return the directory of a study, which may not exist."""
    path = Path(text)
    if is_study(path) or path.is_dir():
        return path
    if path.suffix in _YAML and path.is_file():
        from bftrainer.study.document import read_study  # noqa: PLC0415 - slow to import

        return default_path(str(read_study(path).name))
    return default_path(text)


def default_path(name: str) -> Path:
    """Return where a study of this name is."""
    return Path(f"{name}{SUFFIX}")


@contextlib.contextmanager
def open_loop(
    study: StudyDirectory, client: Client, say: Callable[[str], None]
) -> Iterator[StudyLoop]:
    """Hold the study's lock and return its loop (BFT-1631, BFT-1624)."""
    with only_loop(study.path):
        yield loop_of(study, client, say)


def loop_of(study: StudyDirectory, client: Client, say: Callable[[str], None]) -> StudyLoop:
    """Return the study's loop; the caller holds the lock."""
    try:
        from bftrainer.cli.study.planned import with_plan  # noqa: PLC0415
        from bftrainer.study.loop import StudyLoop  # noqa: PLC0415 - Optuna takes 0.2 s
        from bftrainer.study.storage import (  # noqa: PLC0415
            StudyStorage,
            clear_stale_lock,
            drop_torn_line,
        )
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] != "optuna":
            raise
        raise BftError(
            "BFT-1624",
            "Studies need Optuna, which is not installed here.",
            "Run: pip install 'bftrainer[study]'",
            exit_code=ExitCode.USAGE,
        ) from problem
    clear_stale_lock(study.storage)
    drop_torn_line(study.storage)
    storage = StudyStorage(study.storage, str(study.document.name), study.document)
    return StudyLoop(study, client, storage, say, with_plan(study))


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
        return view_of(StudySummary, "study", parse((path / SUMMARY).read_bytes()))
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
        raise BftError(
            "BFT-1636",
            f"{path / SUMMARY} cannot be read: {problem}.",
            "Remove it; the study's loop writes it again.",
        ) from problem


def wish(
    study: StudyDirectory, socket_name: str | None, change: Callable[[Wishes], Wishes]
) -> None:
    """Change what is wanted of a study; carry it out at once if no loop does."""
    change_wishes(study.path, change)
    try:
        with open_loop(study, connect(socket_name), click.echo) as loop:
            loop.obey()
    except BftError as error:
        if error.code != "BFT-1631":
            raise
        click.echo("its loop obeys within a second")
