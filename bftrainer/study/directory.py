"""A study's directory: what began, the user's wishes, and events.

``study.json`` is written once, when the study begins; it holds the document and the trainer that
every trial is made of, so that the study can go on without the user's YAML and options.

The verbs of ``bftrainer study`` change the wishes, the loop follows them; the file survives both.
Nothing depends on the file of events, a JSON object per line for plots: after a crash one may be
missing or be there twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bftrainer.api.documents import CodecError, decode, encode, parse
from bftrainer.ground.fence import write_whole
from bftrainer.ground.regular_file import check_directory, open_stream, read_file
from bftrainer.model.errors import BftError, ExitCode, UsageError, exit_code_of
from bftrainer.model.trainer import TrainerSpec

if TYPE_CHECKING:
    from bftrainer.study.document import StudyDocument

SUFFIX = ".study"
FILE = "study.json"
LOCK = "loop.lock"
SUMMARY = "summary.json"
MOST_BYTES = 64 << 20  # of each of its files; a hundred thousand trials take half of that
_WISHES, _WISHES_LOCK = "wishes.json", "wishes.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDirectory:
    """A study as it began."""

    path: Path
    study_id: str  # unique among the user's studies
    document: StudyDocument
    base: TrainerSpec  # of every trial; arguments still have their placeholders
    created_s: float

    @property
    def storage(self) -> Path:
        """Optuna's journal file."""
        return self.path / "optuna.log"

    @property
    def summary(self) -> Path:
        """The file that ``status`` shows, as the loop last wrote it."""
        return self.path / SUMMARY

    @property
    def events(self) -> Path:
        """One JSON object per line: what happened when, for plots."""
        return self.path / "events.jsonl"

    @property
    def plan(self) -> Path:
        """The plan that it carries out, if there is one."""
        return self.path / "plan.json"

    @property
    def log(self) -> Path:
        """Output of a detached loop."""
        return self.path / "loop.log"

    def of_trial(self, number: int) -> Path:
        """Return the directory of a trial's checkpoints and logs."""
        return self.path / "trials" / f"{number:04d}"


def new_directory(path: Path, document: StudyDocument, base: TrainerSpec) -> StudyDirectory:
    """Return a study that is about to begin; nothing is written."""
    return StudyDirectory(
        path=path,
        study_id=f"{document.name}-{secrets.token_hex(3)}",
        document=document,
        base=base,
        created_s=round(time.time(), 3),
    )


def check_unused(path: Path) -> None:
    """Refuse a directory that holds anything (BFT-1639): a study writes and removes files there."""
    left_over = f".{FILE}."  # by a process that was killed as it began this study
    try:
        names = [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        return
    except OSError as problem:
        raise _unusable(path, problem) from problem
    for name in names:
        if not name.startswith(left_over):
            raise UsageError(
                "BFT-1639",
                f"The directory {path} is no study, but is not empty: it holds {name!r}.",
                "Name another one with --dir, or empty it.",
            )


def write_directory(study: StudyDirectory) -> None:
    """Create the directory; BFT-1636 if that fails, BFT-1639 if it is used for something else."""
    check_unused(study.path)
    document = {
        "study_id": study.study_id,
        "document": study.document.model_dump(mode="json"),
        "base": encode(study.base),
        "created_s": study.created_s,
    }
    try:
        study.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(study.path / FILE, [json.dumps(document, indent=1).encode()])
    except OSError as problem:
        raise _unusable(study.path, problem) from problem


def _unusable(path: Path, problem: OSError) -> BftError:
    return BftError(
        "BFT-1636",
        f"The study's directory {path} cannot be used: {problem.strerror}.",
        "Name another one with --dir, on a file system all nodes see.",
        exit_code=exit_code_of(problem),
    )


def unwritable(path: Path, problem: OSError) -> BftError:
    """Return that a file of a study cannot be read or written: its disk is full, perhaps."""
    return BftError(
        "BFT-1636",
        f"{path} cannot be read or written: {problem.strerror or problem}.",
        "Free space there or mend the file system, then run the study again; it goes on.",
        exit_code=exit_code_of(problem),
    )


def is_study(path: Path) -> bool:
    """Return whether there is a study in a directory, as far as we may look there."""
    return os.path.isfile(path / FILE)  # noqa: PTH113 - ``Path.is_file`` may raise


def read_directory(path: Path) -> StudyDirectory:
    """Return the study in a directory.

    Raises:
        UsageError: BFT-1633, there is none.
        BftError: BFT-1636, it cannot be read.
    """
    # Imported here: verbs that only look are fast without.
    from pydantic import ValidationError  # noqa: PLC0415

    from bftrainer.study.document import StudyDocument  # noqa: PLC0415

    try:
        check_directory(path)
        document = parse(read_file(path / FILE, MOST_BYTES))
        return StudyDirectory(
            path=path.absolute(),
            study_id=str(document["study_id"]),
            document=StudyDocument.model_validate_json(json.dumps(document["document"])),
            base=decode(TrainerSpec, document["base"], is_strict=False),
            created_s=float(document["created_s"]),
        )
    except FileNotFoundError as problem:
        raise no_study(path) from problem
    except (OSError, CodecError, ValidationError, KeyError, TypeError, ValueError) as problem:
        raise unreadable(
            f"The study in {path}",
            problem,
            "It was written by another release, or is damaged: begin another one.",
        ) from problem


def unreadable(what: str, problem: Exception, next_step: str) -> BftError:
    """Return that a part of a study cannot be read, or that it may not be trusted (BFT-1636)."""
    why: object = problem
    exit_code = ExitCode.VALIDATION_FAILED  # what is in it cannot be read
    if isinstance(problem, OSError):
        why = problem.strerror or problem
        exit_code = exit_code_of(problem)
    if isinstance(problem, PermissionError) and problem.errno == errno.EPERM:
        next_step = "Begin a study of your own, or trust its owner: --any-owner."
    return BftError("BFT-1636", f"{what} cannot be read: {why}.", next_step, exit_code=exit_code)


def no_study(path: Path) -> UsageError:
    """Return that there is no study in a directory."""
    return UsageError(
        "BFT-1633",
        f"There is no study in {path}.",
        "Begin one with 'bftrainer study run STUDY.yaml SCRIPT', or name its directory.",
        exit_code=ExitCode.NOT_FOUND,
    )


def check_same(study: StudyDirectory, requested: StudyDirectory) -> None:
    """Refuse to go on with a study that began as another one (BFT-1632)."""
    changes = _changes(study.document.model_dump(), requested.document.model_dump())
    for spec_field in fields(TrainerSpec):
        name = spec_field.name
        if getattr(study.base, name) != getattr(requested.base, name):
            changes.append(name)
    if changes:
        raise UsageError(
            "BFT-1632",
            f"The study in {study.path} began with another {', '.join(changes)}.",
            f"Go on as it began with 'bftrainer study run {study.path}', or begin another one"
            " with --dir.",
        )


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> list[str]:
    """Return the keys that differ, with what they were: ``rule.trials (9, now 12)``."""
    changes: list[str] = []
    for name in dict.fromkeys((*before, *now)):
        value_before, value_now, full_name = before.get(name), now.get(name), f"{above}{name}"
        if isinstance(value_before, dict) and isinstance(value_now, dict):
            changes += _changes(value_before, value_now, f"{full_name}.")
        elif value_before != value_now:
            changes.append(f"{full_name} ({_short(value_before)}, now {_short(value_now)})")
    return changes


def _short(value: object) -> str:
    if value is None:
        return "not given"
    return str(value)[:60]


@contextlib.contextmanager
def only_loop(path: Path) -> Iterator[None]:
    """Hold the study's lock; BFT-1631 if another loop runs it."""
    from bftrainer.journal.lock import InstanceLock  # noqa: PLC0415 - loads SQLAlchemy

    try:
        lock = InstanceLock.acquire(path, may_be_shared=True, name=LOCK)
    except BftError as error:
        process = error.cause.rpartition(": ")[2]  # or why not
        if error.code != "BFT-1102":  # read-only, somebody else's, or without locks
            raise unwritable(path, OSError(process.removesuffix("."))) from error
        raise BftError(
            "BFT-1631",
            f"The study in {path} is already run by {process}",
            "See 'bftrainer study status'; end that process to run it here.",
            exit_code=ExitCode.ALREADY_RUNNING,
        ) from error
    with lock:
        yield


def is_running(path: Path) -> bool:
    """Return whether a loop runs the study; BFT-1636 if that cannot be seen."""
    try:
        with open_stream(path / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as problem:
        raise unwritable(path, problem) from problem
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The user's current wishes."""

    is_paused: bool = False  # no trial has nodes
    is_stopped: bool = False  # all trials end; final
    more: int = 0  # trials beyond those of the document


def read_wishes(directory: Path) -> Wishes:
    """Return the wishes; BFT-1636 if the file is damaged."""
    try:
        return decode(Wishes, parse(read_file(directory / _WISHES, MOST_BYTES)), is_strict=False)
    except FileNotFoundError:
        return Wishes()
    except (OSError, CodecError) as problem:
        raise unreadable(
            str(directory / _WISHES),
            problem,
            "Remove it: the study then goes on as its document says.",
        ) from problem


def change_wishes(directory: Path, change: Callable[[Wishes], Wishes]) -> Wishes:
    """Change the wishes durably, one verb at a time; return the new ones."""
    try:
        with open_stream(directory / _WISHES_LOCK, "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            wishes = change(read_wishes(directory))
            write_whole(directory / _WISHES, [json.dumps(encode(wishes)).encode()])
    except OSError as problem:
        raise unwritable(directory / _WISHES, problem) from problem
    return wishes


class Events:
    """Says events and appends them to the study's file."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path, self.say = path, say
        self._is_told = False  # that the file cannot be written

    def happened(self, event: str, line: str = "", **more: Any) -> None:
        """Tell one event; ``line`` is for people, "" if they need not know."""
        if line:
            self.say(line)
        document = {"at_s": round(time.time(), 3), "event": event, **more}
        try:
            with open_stream(self._path, "ab") as stream:
                stream.write(json.dumps(document).encode() + b"\n")
        except OSError as problem:
            self.unwritten(self._path, problem)

    def unwritten(self, path: Path, problem: OSError) -> None:
        """Say once that a file on which nothing depends cannot be written."""
        if not self._is_told:
            self.say(f"{path} cannot be written, the study goes on: {problem.strerror}")
        self._is_told = True


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events in order, without cut or damaged lines (BFT-1636: it is not ours)."""
    try:
        lines = read_file(path, MOST_BYTES).splitlines()
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise unreadable(str(path), problem, "Remove it; only pictures need it.") from problem
    events: list[dict[str, Any]] = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict):
                events.append(event)
    return events
