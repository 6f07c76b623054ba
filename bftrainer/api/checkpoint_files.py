"""The files of a checkpoint directory before its trainer starts: made, copied, checked.

Called by ``bftrainer submit`` and by the loop of a study, with the user's rights. The checkpoint
files of a trainer never change, so a link is as good as a copy and takes no space.

A program of the runtime ``command`` may change its files in place, so they are copied, never
linked. It may run meanwhile: its files are enough to start from at any moment
(docs/howto/train-command.md), and so is a copy during which nothing changed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bftrainer.ground import files
from bftrainer.ground.process import own_name
from bftrainer.ground.regular_file import check_directory
from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError

SET_ASIDE = "set-aside"
_CHUNK_BYTES = 1 << 20
_NAME_A_TRAINER = "Name a trainer that has written one, or its checkpoint directory."
LATEST = "latest"  # the link of docs/howto/train-command.md to what a trainer has now
FIRST = "generation-1"  # where its first generation looks
_TEMPORARY = ".copied-"
_TRIES = 3
_IS_GONE = (errno.ENOENT, errno.ESTALE)  # the second on NFS


def make_checkpoint_dir(path: Path) -> bool:
    """Create the directory if necessary and test writing; return whether it is new."""
    try:
        is_new = not path.exists()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(path)
        with tempfile.TemporaryFile(dir=path):
            return is_new
    except OSError as problem:
        raise refusal(path, problem.strerror or str(problem)) from problem


def check_owner(path: Path) -> None:
    """Refuse a checkpoint directory of another user, who could change what is read there."""
    try:
        check_directory(path)
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
            f"{shown(str(directory))} cannot be read: {problem.strerror}.", _NAME_A_TRAINER
        ) from problem
    raise unstartable(f"{shown(str(directory))} holds no complete checkpoint.", _NAME_A_TRAINER)


def bring(source: Path, directory: Path) -> None:
    """Link, or copy, the newest checkpoint of ``source`` into ``directory``."""
    for is_last in (False, False, True):
        path = newest_whole(source)
        try:
            for part in (*files.parts_beside(path), path):  # the first part makes it complete
                _link(part, directory / part.name)
        except FileNotFoundError:  # its trainer runs, and has written a newer one
            if is_last:
                raise
            continue
        return


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or another user's file
        _copy(path, target)


def set_aside(directory: Path) -> None:
    """Move all checkpoints into a new directory beside them."""
    checkpoints = files.newest_first(directory)
    if not checkpoints:
        return
    aside = _unused_name(directory / f"{SET_ASIDE}-{time.strftime('%Y%m%d-%H%M%S')}")
    aside.mkdir(mode=0o700)
    for path in checkpoints:
        for part in (*files.parts_beside(path), path):
            part.rename(aside / part.name)


def _unused_name(path: Path) -> Path:
    """Return the path, with a number at its end if something is there."""
    unused, number = path, 0
    while os.path.lexists(unused):
        number += 1
        unused = path.with_name(f"{path.name}-{number}")
    return unused


def _is_whole(path: Path) -> bool:
    """Return whether each part of it ends with the checksum of all bytes before it."""
    try:
        count = files.peek(path).get("parts", 1)
        return all(_is_sound(files.part_of(path, part)) for part in range(int(count)))
    except (OSError, files.UnreadableError, TypeError, ValueError):
        return False


def _is_sound(path: Path) -> bool:
    digest = hashlib.sha256()
    try:
        with files.opened(path) as file:
            bytes_left = os.fstat(file.fileno()).st_size - files.DIGEST_BYTES
            while bytes_left > 0:
                chunk = file.read(min(bytes_left, _CHUNK_BYTES))
                if not chunk:
                    break
                digest.update(chunk)
                bytes_left -= len(chunk)
            return file.read() == digest.digest()
    except (OSError, files.UnreadableError):
        return False


def _copy(path: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{own_name()}.tmp")
    try:
        with files.opened(path) as file, temporary.open("xb") as copy:
            shutil.copyfileobj(file, copy, _CHUNK_BYTES)
            copy.flush()
            os.fsync(copy.fileno())
        temporary.rename(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


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
            if _copy_directory(source / LATEST, temporary / FIRST):
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
    for copy in (directory / FIRST, *directory.glob(f"{_TEMPORARY}*")):
        shutil.rmtree(copy, ignore_errors=True)


def _copy_directory(link: Path, target: Path) -> bool:
    """Copy a directory; return whether nothing changed in it meanwhile."""
    try:
        # A restart of the program renames the directory, and then renews the link.
        source = link.resolve(strict=True)
        before = _listing(source)
    except FileNotFoundError:
        if not os.path.lexists(link):
            raise _no_checkpoint(link) from None
        return False
    if not any(stat.S_ISREG(status.st_mode) for status in before.values()):
        raise _no_checkpoint(link)
    target.mkdir(mode=0o700)
    try:
        for path, status in before.items():
            _copy_with_mode(path, target / path.relative_to(source), status.st_mode)
        return _identities(before) == _identities(_listing(source))
    except OSError as problem:
        if problem.errno not in _IS_GONE:
            raise
        return False


def _listing(root: Path) -> dict[Path, os.stat_result]:
    """Return all that is below a directory, directories before what they hold."""

    def refuse(problem: OSError) -> None:
        raise problem

    listing: dict[Path, os.stat_result] = {}
    for directory, subdirectories, names in os.walk(root, onerror=refuse):
        for name in (*subdirectories, *names):
            path = Path(directory, name)
            listing[path] = path.lstat()
    return listing


def _identities(listing: Mapping[Path, os.stat_result]) -> dict[Path, tuple[int, ...]]:
    """Return what differs once a file was written."""
    identities: dict[Path, tuple[int, ...]] = {}
    for path, status in listing.items():
        identities[path] = (status.st_mode, status.st_ino)
        if stat.S_ISREG(status.st_mode):
            identities[path] += (status.st_size, status.st_mtime_ns)
    return identities


def _copy_with_mode(path: Path, target: Path, mode: int) -> None:
    """Copy one of them; sockets and pipes are nothing to start from."""
    if stat.S_ISDIR(mode):
        target.mkdir(mode=0o700)
    elif stat.S_ISLNK(mode):
        target.symlink_to(path.readlink())
    elif stat.S_ISREG(mode):
        shutil.copy2(path, target, follow_symlinks=False)
        with target.open("rb") as file:
            os.fsync(file.fileno())


def _no_checkpoint(link: Path) -> UsageError:
    return unstartable(
        f"{shown(str(link))} is empty: its program has written no checkpoint.",
        "Write one into $BFT_CHECKPOINT_DIR before its end, as docs/howto/train-command.md says.",
    )
