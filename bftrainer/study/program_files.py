"""Copies the checkpoint of one program of runtime ``command`` for another trainer.

A program may change its files in place, so they are copied, never linked. It may run meanwhile:
what it has is enough to start from at any moment (docs/howto/train-command.md), and so is a copy
during which nothing changed. Called by the loop of a study.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError
from bftrainer.study.checkpoint_files import unstartable

LATEST = "latest"  # the link of docs/howto/train-command.md to what a trainer has now
FIRST = "generation-1"  # where its first generation looks
_TEMPORARY = ".copied-"
_TRIES = 3
_IS_GONE = (errno.ENOENT, errno.ESTALE)  # the second on NFS


class ChangingError(Exception):
    """The files do not hold still: the program is writing them."""


def copy_newest(source: Path, directory: Path) -> None:
    """Copy what the program of ``source`` has now into ``directory``, for a first start there.

    Raises:
        UsageError: BFT-1047, it has written nothing.
        ChangingError: it writes all the time; when it has stopped there is a copy.
        OSError: the file system refuses.
    """
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=directory))
    try:
        for _ in range(_TRIES):
            if _copied(source / LATEST, temporary / FIRST):
                (temporary / FIRST).rename(directory / FIRST)
                return
            shutil.rmtree(temporary / FIRST, ignore_errors=True)
        raise ChangingError(str(source))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def drop_copies(directory: Path) -> None:
    """Remove what ``copy_newest`` left where the trainer was not submitted after all."""
    if directory.is_symlink():
        return
    for left in (directory / FIRST, *directory.glob(f"{_TEMPORARY}*")):
        shutil.rmtree(left, ignore_errors=True)


def _copied(link: Path, target: Path) -> bool:
    """Copy a directory; return whether nothing changed in it meanwhile."""
    try:
        # A restart of the program renames the directory, and then renews the link.
        source = link.resolve(strict=True)
        before = _listing(source)
    except FileNotFoundError:
        if not os.path.lexists(link):
            raise _none(link) from None
        return False
    if not any(stat.S_ISREG(one.st_mode) for one in before.values()):
        raise _none(link)
    target.mkdir(mode=0o700)
    try:
        for path, status in before.items():
            _copy(path, target / path.relative_to(source), status.st_mode)
        return _identities(before) == _identities(_listing(source))
    except OSError as problem:
        if problem.errno not in _IS_GONE:
            raise
        return False


def _listing(root: Path) -> dict[Path, os.stat_result]:
    """Return all that is below a directory, directories before what they hold."""

    def refuse(problem: OSError) -> None:
        raise problem

    return {
        path: path.lstat()
        for top, names, files in os.walk(root, onerror=refuse)
        for path in (Path(top, name) for name in (*names, *files))
    }


def _identities(listing: Mapping[Path, os.stat_result]) -> dict[Path, tuple[int, ...]]:
    """Return what differs once a file was written."""
    return {
        path: (one.st_mode, one.st_ino, *((one.st_size, one.st_mtime_ns) if _is_file(one) else ()))
        for path, one in listing.items()
    }


def _is_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode)


def _copy(path: Path, target: Path, mode: int) -> None:
    """Copy one of them; sockets and pipes are nothing to start from."""
    if stat.S_ISDIR(mode):
        target.mkdir(mode=0o700)
    elif stat.S_ISLNK(mode):
        target.symlink_to(path.readlink())
    elif stat.S_ISREG(mode):
        shutil.copy2(path, target, follow_symlinks=False)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def _none(link: Path) -> UsageError:
    return unstartable(
        f"{shown(str(link))} is empty: its program has written no checkpoint.",
        "Write one into $BFT_CHECKPOINT_DIR before its end, as docs/howto/train-command.md says.",
    )
