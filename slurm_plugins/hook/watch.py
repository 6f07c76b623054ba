"""Watches the hook's file and turns appended lines into announcements at once.

The adapter opens it, the daemon waits on its descriptor. Slurm's scripts create the file and
replace it when full; we only read, and only while no one but SlurmUser and root can write there.
The directory is watched, to notice a new file. Source: inotify(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bftrainer.errors import BatchSystemError
from bftrainer.poll.announcer import Announcement
from slurm_plugins.hook.lines import announcement
from slurm_plugins.hook.place import name_of, why_unsafe

MOST_BYTES = 1 << 16  # about 700 lines; if there is more, it is skipped and a poll shows all
MOST_LINE_BYTES = 1 << 15
_NO_LINE = b"?"  # makes the rest of a line invalid
# Modify, attrib, moved from, moved to, create, delete; delete and move of the directory itself.
_IN_CHANGES = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
_IN_ONLYDIR = 0x1000000
_IN_NONBLOCK, _IN_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
_EVENTS_BYTES = 1 << 16


class Lines:
    """Assembles pieces of a file into whole lines; overlong ones are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, piece: bytes) -> list[str]:
        """Return the lines completed by this piece."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MOST_LINE_BYTES:
            self._rest = _NO_LINE
        return [line.decode(errors="replace") for line in lines if 0 < len(line) <= MOST_LINE_BYTES]

    def skip(self) -> None:
        """Drop the current line: part of the file was skipped."""
        self._rest = _NO_LINE


class _Reading:
    """One file, read incrementally."""

    def __init__(self, path: Path, owner_uid: int, *, at_end: bool) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._fd = os.open(path, flags)
        self._owner_uid, self._lines = owner_uid, Lines()
        self._at = os.fstat(self._fd).st_size if at_end else 0

    def why_unsafe(self) -> str:
        """Say why others may have written its lines; "" if they cannot."""
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"
        return why_unsafe(status, self._owner_uid)

    def is_at(self, path: Path) -> bool:
        """Whether the path still names this file, or nothing."""
        try:
            return os.path.samestat(os.fstat(self._fd), path.lstat())
        except FileNotFoundError:
            return True

    def read(self) -> tuple[list[str], bool]:
        """Return the new lines, and whether too many were skipped."""
        size = os.fstat(self._fd).st_size
        if size < self._at:
            self._at, self._lines = 0, Lines()
        is_too_much = size - self._at > MOST_BYTES
        if is_too_much:
            self._at = size
            self._lines.skip()
        piece = os.pread(self._fd, MOST_BYTES, self._at)
        self._at += len(piece)
        return self._lines.add(piece), is_too_much

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class HookFile:
    """An ``Announcer`` that reads what ``scripts`` write."""

    def __init__(
        self,
        path: Path,
        pilot_partition: str,
        *,
        owner_uid: int,
        cpus_per_node: Callable[[], int] = lambda: 0,
    ) -> None:
        """Watch the file; older lines are not read, because a poll shows those jobs.

        Args:
            path: that the scripts append to.
            pilot_partition: lines about it are our own doing and ignored.
            owner_uid: SlurmUser, owner of the file unless root is.
            cpus_per_node: of the largest node.

        Raises:
            BatchSystemError: BFT-1231, it is missing or cannot be watched; BFT-1233, others
                could write there.
        """
        self._path, self._owner_uid, self._pilot_partition = path, owner_uid, pilot_partition
        self._cpus_per_node = cpus_per_node
        self._number = 0
        self._fd = -1
        self._reading: _Reading | None = None
        try:
            self._fd = self._watched(path.parent)
            self._directory = path.parent.stat()
            self._reading = _Reading(path, owner_uid, at_end=True)
            self._check()
        except OSError as problem:
            self.close()
            raise self._unusable(problem) from problem
        except BatchSystemError:
            self.close()
            raise

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a line was appended."""
        return self._fd

    def read(self) -> tuple[Announcement, ...]:
        """Return the announcements since the last call.

        Raises:
            BatchSystemError: it can no longer be used; codes as for opening it.
        """
        with suppress(BlockingIOError):
            while len(os.read(self._fd, _EVENTS_BYTES)) == _EVENTS_BYTES:
                pass
        try:
            return tuple(self._news())
        except OSError as problem:
            raise self._unusable(problem) from problem

    def close(self) -> None:
        """Stop watching; the scripts keep writing, into a file of bounded size."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _news(self) -> list[Announcement]:
        reading = self._check()
        lines, is_too_much = reading.read()
        if not reading.is_at(self._path):
            self._reading = _Reading(self._path, self._owner_uid, at_end=False)
            reading.close()
            more, was_more = self._check().read()
            lines, is_too_much = lines + more, is_too_much or was_more
        said = [Announcement(at_s=0.0, partition="")] if is_too_much else []
        for line in lines:
            self._number += 1
            news = announcement(line, self._number, self._cpus_per_node())
            if news is not None and news.partition != self._pilot_partition:
                said.append(news)
        return said

    def _check(self) -> _Reading:
        """Return the open file, if no one else can write to it."""
        now, reading = self._path.parent.stat(), self._reading
        if reading is None or not os.path.samestat(now, self._directory):
            raise FileNotFoundError(0, "its directory was replaced")
        unsafe = {
            self._path.parent: why_unsafe(now, self._owner_uid),
            self._path: reading.why_unsafe(),
        }
        for path, why in unsafe.items():
            if why:
                raise self._unsafe(path, why)
        return reading

    def _unsafe(self, path: Path, why: str) -> BatchSystemError:
        return BatchSystemError(
            "BFT-1233",
            f"The hook's file is not trusted: {path} {why}.",
            f"Make {name_of(self._owner_uid)}, Slurm's user, its owner, and let no one else write "
            "there; bftrainer-slurm-hook creates such a directory.",
        )

    def _watched(self, directory: Path) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = _checked(libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
        try:
            name = os.fsencode(directory)
            _checked(libc.inotify_add_watch(fd, name, _IN_CHANGES | _IN_ONLYDIR))
        except OSError:
            os.close(fd)
            raise
        return fd

    def _unusable(self, problem: OSError) -> BatchSystemError:
        if problem.errno == errno.ELOOP:
            return self._unsafe(self._path, "is a link")
        return BatchSystemError(
            "BFT-1231",
            f"The hook's file {self._path} cannot be read: {problem.strerror or problem}.",
            "Slurm creates it when it loads the scripts of bftrainer-slurm-hook: write them, run "
            "'scontrol reconfigure', and let the daemon's user read file and directory.",
        )


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
