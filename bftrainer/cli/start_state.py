"""From which state a submitted trainer starts: ``submit --resume-from`` and ``--fresh``.

The files of a checkpoint never change, so a link is as good as a copy and takes no space.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from bftrainer.api.client import Client
from bftrainer.columns import shown
from bftrainer.elastic import files
from bftrainer.errors import UsageError
from bftrainer.model.trainer import TrainerSpec

SET_ASIDE = "set-aside"
_CHUNK_BYTES = 1 << 20
_ID = re.compile(r"t[0-9]{1,18}\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """What is done with a trainer's checkpoint directory before it may start."""

    source: Path | None = None  # directory whose newest checkpoint it starts from
    is_fresh: bool = False  # its own checkpoints are set aside

    @property
    def is_needed(self) -> bool:
        """Whether anything is to be done."""
        return self.is_fresh or self.source is not None

    def check(self, spec: TrainerSpec) -> None:
        """Refuse what cannot be done (BFT-1047)."""
        if not self.is_needed:
            return
        own = Path(spec.checkpoint_dir)
        if spec.runtime == "command":
            raise _refusal(
                "Programs of runtime command keep their state in files of their own.",
                "Copy them, or name a new --checkpoint-dir to start afresh.",
            )
        if self.source is None:
            return
        if os.path.realpath(self.source) == os.path.realpath(own):
            raise _refusal(
                f"{shown(str(own))} is the trainer's own checkpoint directory.",
                "Leave out --resume-from: it goes on from there anyway."
                " Name another -J or --checkpoint-dir to leave it as it is.",
            )
        if not self.is_fresh and files.newest_first(own):
            raise _refusal(
                f"{shown(str(own))} has checkpoints already.",
                "Add --fresh to set them aside, or name another -J or --checkpoint-dir.",
            )
        newest_whole(self.source)

    def prepare(self, directory: Path) -> None:
        """Set checkpoints aside and bring the one to start from."""
        try:
            if self.is_fresh:
                set_aside(directory)
            if self.source is not None:
                bring(self.source, directory)
        except OSError as problem:
            raise _refusal(
                f"The checkpoints in {shown(str(directory))} cannot be changed: {problem}.",
                "Check the directory and its file system, then submit again.",
            ) from problem


def source_of(client: Client, text: str | None) -> Path | None:
    """Return the checkpoint directory that ``--resume-from ID|DIR`` names."""
    if text is None:
        return None
    if _ID.match(text) and not os.path.lexists(text):
        return Path(client.trainer(text).record.spec.checkpoint_dir)
    return Path(text).absolute()


def newest_whole(directory: Path) -> Path:
    """Return the checkpoint with the most steps whose checksum is right.

    Raises:
        UsageError: BFT-1047, there is none.
    """
    try:
        for path in files.newest_first(directory):
            if _is_whole(path):
                return path
    except OSError as problem:
        raise _refusal(
            f"{shown(str(directory))} cannot be read: {problem.strerror}.", _NAME
        ) from problem
    raise _refusal(f"{shown(str(directory))} holds no complete checkpoint.", _NAME)


def bring(source: Path, directory: Path) -> None:
    """Link, or copy, the newest checkpoint of ``source`` into ``directory``."""
    for is_last in (False, False, True):
        path = newest_whole(source)
        target = directory / path.name
        try:
            os.link(path, target, follow_symlinks=False)
        except FileNotFoundError:  # its trainer runs, and has written a newer one
            if is_last:
                raise
            continue
        except OSError:  # another file system, or another user's file
            _copy(path, target)
        return


def set_aside(directory: Path) -> None:
    """Move all checkpoints into a new directory beside them."""
    found = files.newest_first(directory)
    if not found:
        return
    stem, number = f"{SET_ASIDE}-{time.strftime('%Y%m%d-%H%M%S')}", 0
    while os.path.lexists(aside := directory / f"{stem}{f'-{number}' if number else ''}"):
        number += 1
    aside.mkdir(mode=0o700)
    for path in found:
        path.rename(aside / path.name)


def _is_whole(path: Path) -> bool:
    """Whether the file ends with the checksum of what is before."""
    try:
        files.peek(path)
    except (OSError, files.UnreadableError):
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size - files.DIGEST_BYTES
        while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
            digest.update(chunk)
            left -= len(chunk)
        return file.read() == digest.digest()


def _copy(path: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with path.open("rb") as file, temporary.open("xb") as copy:
            shutil.copyfileobj(file, copy, _CHUNK_BYTES)
            copy.flush()
            os.fsync(copy.fileno())
        temporary.rename(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


_NAME = "Name a trainer that has written one, or its checkpoint directory."


def _refusal(cause: str, next_step: str) -> UsageError:
    return UsageError("BFT-1047", cause, next_step)
