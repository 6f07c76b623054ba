"""Checkpoints that a start could not use: set aside, and told to the user.

A damaged file is renamed, so that the next checkpoints do not rotate it away: what is left of it
may be wanted. A few are kept. What was passed over, and where the training began instead, goes to
the daemon as ``PassedOver``, beside the log. For every runtime, hence without torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from bftrainer.elastic.process.control import Control
from bftrainer.ground import files
from bftrainer.ground.fence import SUFFIX
from bftrainer.ground.files import DamagedError, ForeignError, SkipNote
from bftrainer.ground.protocol import PassedOver

log = logging.getLogger("bftrainer.elastic")
T = TypeVar("T")

ASIDE = ".damaged"  # after the name of a file that is set aside
MOST_ASIDE = 3
MOST_NAMED = 3  # in one message


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedFile:
    """A checkpoint that could not be used."""

    path: Path
    why: str
    aside: Path | None = None  # where it is now, if it was set aside
    is_foreign: bool = False  # sound, and of another model

    def __str__(self) -> str:
        """Return it in words."""
        if self.aside is None:
            return f"{self.path.name} ({self.why})"
        return f"{self.path.name} ({self.why}; kept as {self.aside.name})"


class CheckpointSearch(Protocol):
    """As ``files.newest``."""

    def __call__(
        self, directory: Path | None, read: Callable[[Path], T], note: SkipNote, /
    ) -> T | None:
        """Return what ``read`` returns of the newest checkpoint that it does not refuse."""


class TellingSearch:
    """Looks for the newest checkpoint, sets damaged ones aside, and tells of them."""

    def __init__(
        self, control: Control, search: CheckpointSearch = files.newest, *, is_first: bool = True
    ) -> None:
        self._control, self._search = control, search
        self._is_first = is_first  # of the workers that look together; the others only read
        self._unused: list[UnusedFile] = []

    def __call__(self, directory: Path | None, read: Callable[[Path], T]) -> T | None:
        """Return what ``read`` returns of the newest checkpoint that it does not refuse.

        Raises:
            ElasticError: BFT-1343, when the file system does not let them be read now.
        """
        self._unused = []
        began: list[Path] = []

        def reading(path: Path) -> T:
            result = read(path)
            began.append(path)
            return result

        result = self._search(directory, reading, self._note)
        if directory is not None and self._is_first:
            self._tell(directory, began[-1] if result is not None else None)
        return result

    def _note(self, path: Path, problem: Exception) -> None:
        is_damaged = isinstance(problem, DamagedError) or (
            isinstance(problem, FileNotFoundError) and path.exists()  # a part of it is gone
        )
        aside = set_aside(path) if is_damaged and self._is_first else None
        why = str(problem)
        if isinstance(problem, OSError) and problem.strerror:
            why = problem.strerror
        unused = UnusedFile(
            path=path, why=why, aside=aside, is_foreign=isinstance(problem, ForeignError)
        )
        self._unused.append(unused)
        log.warning("BFT-1413: skipped checkpoint %s: %s", path, problem)

    def _tell(self, directory: Path, began: Path | None) -> None:
        if text := sentence(directory, self._unused, began):
            log.warning("%s", text)
            self._control.send(PassedOver(cause=text))


def sentence(directory: Path, unused: list[UnusedFile], began: Path | None) -> str:
    """Return what a start says of what it could not use; empty: nothing is to be said."""
    if began is None and unused and all(file.is_foreign for file in unused):
        return ""  # the start is refused with BFT-1408
    if unused:
        names = ", ".join(map(str, unused[:MOST_NAMED]))
        if len(unused) > MOST_NAMED:
            names += f" and {len(unused) - MOST_NAMED} more"
        cause = f"Not used of {directory}: {names}."
    elif began is None and (count := unfinished(directory)):
        files_are = "file is" if count == 1 else "files are"
        cause = f"No checkpoint in {directory} is complete: {count} {files_are} unfinished."
    else:
        return ""
    if began is None:
        return f"BFT-1413: {cause} The training began anew."
    step = files.step_of(began)
    return f"BFT-1413: {cause} The training goes on from step {step} ({began.name})."


def unfinished(directory: Path) -> int:
    """Return how many files there are of writers that ended before they were done."""
    return sum(1 for _ in directory.glob(f".*{SUFFIX}.*.tmp"))


def set_aside(path: Path) -> Path | None:
    """Rename a damaged checkpoint with its parts; return its new place.

    None: the file system does not allow it. The newest few that are set aside are kept.
    """
    target = path.with_name(path.name + ASIDE)
    try:
        for part in files.parts_beside(path):
            part.rename(part.with_name(target.name + part.name.removeprefix(path.name)))
        path.rename(target)
    except OSError as problem:
        log.warning("cannot set %s aside: %s", path, problem)
        return None
    newest_first = sorted(path.parent.glob(f"[!.]*{SUFFIX}{ASIDE}"), reverse=True)
    earlier = [file for file in newest_first if file != target]
    for first_part in earlier[MOST_ASIDE - 1 :]:
        for file in (first_part, *files.parts_beside(first_part)):
            with suppress(OSError):
                file.unlink()
    return target
