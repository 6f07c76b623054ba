"""Opens what others may have put in place: regular files of the user or root, and nothing else.

Where several users write into one directory, a name there can be a pipe that blocks for ever, a
link to a file of the reader, a device without an end, or a file whose words another user chose.
Documents, studies, checkpoints, logs and summaries are opened here. Standard library only: agents
and workers import this early.

All refusals are ``OSError`` with a sentence as ``strerror``, like those of the kernel.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, Literal

ANY_OWNER = "BFT_ANY_OWNER"  # in the environment: its user trusts files of all owners
# Of the refusals below; a file system in trouble has others.
REFUSALS = (errno.ELOOP, errno.EINVAL, errno.EFBIG, errno.EPERM)
_ROOT = 0
_FLAGS = {"rb": os.O_RDONLY, "rb+": os.O_RDWR, "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND}
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
StrPath = str | os.PathLike[str]


def open_file(
    path: StrPath,
    flags: int = os.O_RDONLY,
    mode: int = 0o600,
    *,
    is_typed: bool = False,
    is_any_owner: bool = False,
    owner_uid: int | None = None,
    dir_fd: int | None = None,
) -> int:
    """Open a regular file and return its descriptor; never waits for a pipe.

    Args:
        path: its last component is not followed if it is a link.
        flags: as of ``os.open``.
        mode: of a file that is created.
        is_typed: the user has named this file: it may be a link, and another user's.
        is_any_owner: the caller judges the owner.
        owner_uid: a further owner who is trusted, besides the user and root.
        dir_fd: directory that a relative path begins from.

    Raises:
        OSError: it cannot be opened, is no regular file, a link or another user's.
    """
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if is_typed else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
    except OSError as problem:
        if problem.errno == errno.ELOOP and not is_typed:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from problem
        if problem.errno in (errno.ENXIO, errno.EISDIR):  # a pipe without a reader, a socket
            raise _irregular(path) from problem
        raise
    try:
        status = os.fstat(fd)
        _check_kind(path, status)
        if not (is_typed or is_any_owner or status.st_uid == owner_uid):
            _check_owner(path, status)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_stream(
    path: StrPath, mode: Literal["rb", "rb+", "ab"] = "rb", *, is_typed: bool = False
) -> BinaryIO:
    """Open a regular file, as ``open_file`` does; ``ab`` creates it if it is missing."""
    return os.fdopen(open_file(path, _FLAGS[mode], is_typed=is_typed), mode)


def read_file(
    path: StrPath, most: int, *, is_typed: bool = False, dir_fd: int | None = None
) -> bytes:
    """Return the contents of a regular file of at most ``most`` bytes.

    Raises:
        OSError: as ``open_file``; also if it is longer.
    """
    with os.fdopen(open_file(path, is_typed=is_typed, dir_fd=dir_fd), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most} bytes", str(path))
    return data


def open_log(path: str) -> int:
    """Open a log, or the null device, for appending; its directory is made if it is missing.

    Raises:
        OSError: as ``open_file``; also if the directory is a link or another user's.
    """
    if path == os.devnull:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - as all here: without pathlib
    at = os.open(folder, _PATH | os.O_NOFOLLOW)
    try:
        _check_owner(folder, os.fstat(at))
        return open_file(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644, dir_fd=at)
    finally:
        os.close(at)


def check_directory(path: StrPath) -> None:
    """Refuse a directory, or a link to one, that belongs neither to the user nor to root.

    Raises:
        OSError: it does; or there is none, or nobody may look.
    """
    at = os.open(path, _PATH)
    try:
        _check_owner(path, os.fstat(at))
    finally:
        os.close(at)
    _check_owner(path, os.lstat(path))


def why(problem: OSError) -> str:
    """Return the path that could not be used, and why, in words."""
    place = "" if problem.filename is None else f"{os.fsdecode(problem.filename)}: "
    return f"{place}{problem.strerror or problem}"


def _check_owner(path: StrPath, status: os.stat_result) -> None:
    if status.st_uid in (os.geteuid(), _ROOT) or os.environ.get(ANY_OWNER) == "1":
        return
    why = f"it belongs to another user (uid {status.st_uid})"
    raise PermissionError(errno.EPERM, why, str(path))


def _check_kind(path: StrPath, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _irregular(path)


def _irregular(path: StrPath) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", str(path))
