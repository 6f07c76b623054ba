"""The files of a trainer's checkpoint directory before it starts: made, brought, set aside.

Called by ``bftrainer submit`` and by the loop of a study, with the user's rights. The files of a
checkpoint never change, so a link is as good as a copy and takes no space.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from bftrainer.elastic import files
from bftrainer.elastic.scratch import own_name
from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError

SET_ASIDE = "set-aside"
_CHUNK_BYTES = 1 << 20


def make_checkpoint_dir(path: Path) -> bool:
    """Create the directory if necessary and test writing; return whether it is new."""
    try:
        is_new = not path.exists()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return is_new
    except OSError as problem:
        raise refusal(path, problem.strerror or str(problem)) from problem


def remove_if_empty(path: Path) -> None:
    """Remove a directory that was created for a failed submission."""
    if not any(path.iterdir()):
        path.rmdir()


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
        raise unstartable(
            f"{shown(str(directory))} cannot be read: {problem.strerror}.", _NAME
        ) from problem
    raise unstartable(f"{shown(str(directory))} holds no complete checkpoint.", _NAME)


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
    temporary = target.with_name(f".{target.name}.{own_name()}.tmp")
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


def unstartable(cause: str, next_step: str) -> UsageError:
    """Return that a trainer cannot start from a state (BFT-1047)."""
    return UsageError("BFT-1047", cause, next_step)


def refusal(path: Path, reason: str) -> UsageError:
    """Return that a checkpoint directory cannot be used (BFT-1014)."""
    return UsageError(
        "BFT-1014",
        f"The checkpoint directory {path} cannot be used: {reason}.",
        "Name a directory that you can write to, seen by all nodes, with --checkpoint-dir.",
    )
