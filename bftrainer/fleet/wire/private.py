"""Private files (mode 0600): keys and agent configurations.

Files that others could have read or written are refused (BFT-1302). Used by the daemon, the
agents and ``keys``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from bftrainer.ground.regular_file import open_file
from bftrainer.model.errors import BftError, ExitCode

DEFAULT_LIMIT_BYTES = 64 * 1024


def write_private(path: Path, data: bytes) -> None:
    """Create ``path`` with mode 0600 and these contents, atomically and synced to disk.

    Raises:
        BftError: BFT-1302 when the file exists already (also as a symbolic link)
            or cannot be written.
    """
    draft = path.with_name(f".{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        draft.unlink(missing_ok=True)  # of a writer that was killed
        try:
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                os.fchmod(file.fileno(), 0o600)  # whatever the umask made of it
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path, follow_symlinks=False)  # fails if the name exists
        finally:
            draft.unlink(missing_ok=True)
    except OSError as problem:
        raise _refused(path, f"cannot be created ({problem.strerror})") from problem


def read_private(
    path: Path, *, limit_bytes: int = DEFAULT_LIMIT_BYTES, is_secret: bool = True
) -> bytes:
    """Return the contents of a file that no other user can have written, nor read if it is secret.

    ``BftError`` BFT-1302 if it is missing, a symbolic link, not a regular file, owned by another
    user, accessible to group or others, or too long.
    """
    try:
        fd = open_file(path, is_any_owner=True)
    except OSError as problem:
        raise _refused(path, f"cannot be opened ({problem.strerror})") from problem
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise _refused(path, f"belongs to user {status.st_uid}, not to us")
        if status.st_mode & (0o077 if is_secret else 0o022):
            raise _refused(path, f"has mode {stat.S_IMODE(status.st_mode):04o}")
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(limit_bytes + 1)
    finally:
        os.close(fd)
    if len(data) > limit_bytes:
        raise _refused(path, f"is longer than {limit_bytes} bytes")
    return data


def _refused(path: Path, why: str) -> BftError:
    return BftError(
        "BFT-1302",
        f"The private file {path} {why}.",
        "It must be a regular file with mode 0600 that belongs to the user who runs this; "
        "remove it and let bftrainer write it again.",
        exit_code=ExitCode.NOT_PERMITTED,
    )
