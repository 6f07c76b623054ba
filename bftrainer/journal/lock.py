"""The lock of a state directory: one daemon at a time.

A daemon first calls ``InstanceLock.acquire``. A site's daemon keeps its state on a local disk. A
user's own daemon keeps it where login and compute nodes see it (docs/adr/0027-own-daemon.md); there
the journal is open to one process at a time (``is_shared``), since SQLite's write-ahead log else
needs memory shared by its users.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import stat
from pathlib import Path
from typing import Self

from bftrainer.model.errors import BftError, ExitCode

LOCK_NAME = "daemon.lock"
# As ``acquire`` writes it; anything else is ignored.
_HOLDER = re.compile(rb'\{"pid": ([0-9]{1,18}), "host": "([!-~]{1,255}?)"\}\n')
_MOUNTS = Path("/proc/self/mounts")
MOUNT_FIELDS = 3  # needed: device, mount point, type
# On some of these flock has no effect between hosts; SQLite's write-ahead log is unsafe on all.
SHARED_FILESYSTEMS = frozenset(
    {
        "nfs", "nfs4", "lustre", "gpfs", "mmfs", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda",
        "ceph", "fuse.ceph", "fuse.ceph-fuse", "glusterfs", "fuse.glusterfs", "beegfs", "pvfs2",
        "orangefs", "panfs", "wekafs", "dvs", "fuse.sshfs", "fuse.s3fs", "fuse.juicefs", "daos",
        "fuse.daos", "ocfs2", "gfs2",
    }
)  # fmt: skip


class InstanceLock:
    """The daemon's lock on a state directory; released when its process ends."""

    def __init__(self, handle: int, path: Path) -> None:
        self._handle: int | None = handle
        self.path = path

    @classmethod
    def acquire(
        cls, state_dir: Path, *, may_be_shared: bool = False, name: str = LOCK_NAME
    ) -> InstanceLock:
        """Take the lock of a state directory, which is created when missing.

        Args:
            state_dir: on a local disk.
            may_be_shared: or on a file system that other hosts share.
            name: of the lock's file.

        Raises:
            BftError: BFT-1102 (exit code 75) when a daemon holds it, BFT-2204 on a
                file system shared between hosts, BFT-2212 when it cannot be written.
        """
        path = state_dir / name
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not may_be_shared:
                refuse_shared_filesystem(state_dir)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(path, flags, 0o600)
        except OSError as problem:
            raise _unusable(state_dir, problem.strerror or str(problem)) from problem
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise _unusable(state_dir, f"{name} in it is not a regular file")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname()[:255]})
            os.ftruncate(handle, 0)
            os.pwrite(handle, holder.encode() + b"\n", 0)
        except OSError as problem:
            text = os.pread(handle, 4096, 0)
            os.close(handle)
            if problem.errno in (errno.EAGAIN, errno.EACCES):
                raise held(state_dir, text) from problem
            raise _unusable(state_dir, problem.strerror or str(problem)) from problem
        return cls(handle, path)

    def release(self) -> None:
        """Release the directory; the file stays, since two files could both be locked."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_shared(directory: Path, mounts: str | None = None) -> bool:
    """Return whether other hosts share the file system of a directory."""
    return filesystem_type(directory, mounts) in SHARED_FILESYSTEMS


def refuse_shared_filesystem(directory: Path, mounts: str | None = None) -> None:
    """Raise BFT-2204 when the directory is on a file system shared between hosts."""
    if is_shared(directory, mounts):
        kind = filesystem_type(directory, mounts)
        raise BftError(
            "BFT-2204",
            f"The state directory {directory} is on a {kind} file system, which other hosts share.",
            "Choose a directory on a local disk of this host, for example "
            "/var/lib/bftrainer; checkpoints may stay on shared file systems.",
            exit_code=ExitCode.USAGE,
        )


def filesystem_type(directory: Path, mounts: str | None = None) -> str:
    """Return the type of the file system a path is on, "" when it is not known.

    Args:
        directory: any path; links in it are followed.
        mounts: text in the format of /proc/mounts, this process's own when None.
    """
    if mounts is None:
        try:
            mounts = _MOUNTS.read_text(errors="surrogateescape")
        except OSError:
            return ""  # no /proc
    target = directory.resolve()
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < MOUNT_FIELDS:
            continue
        _, mount_point, filesystem, *_ = fields
        point = Path(_unescaped(mount_point))
        if target.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), filesystem  # of equals, the last hides the others
    return kind


def _unescaped(field: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field


def held(state_dir: Path, text: bytes) -> BftError:
    """Return BFT-1102, naming the holder if the lock file does."""
    line = _HOLDER.fullmatch(text)
    holder = "a process that has not written its name yet"
    if line is not None:
        pid, host = line.groups()
        holder = f"process {int(pid)} on {host.decode('ascii')}"
    return BftError(
        "BFT-1102",
        f"A daemon already uses the state directory {state_dir}: {holder}.",
        "Use that daemon, or stop it first, or give this one another --state-dir.",
        exit_code=ExitCode.ALREADY_RUNNING,
    )


def _unusable(state_dir: Path, why: str) -> BftError:
    return BftError(
        "BFT-2212",
        f"The state directory {state_dir} cannot be used: {why}.",
        "Choose a directory that the user of the daemon may write to.",
        exit_code=ExitCode.NOT_PERMITTED,
    )
