"""Reads the lines that another user appends to a file that only this user and root can write.

With write access to its directory, others could replace a file by a pipe, a link or a file of their
own; ``why_unsafe`` finds that, also for the commands that create such directories.

Called by the adapters' announcers (``slurm_plugins.hook.watch``,
``lsf_adapters.notifications.watch``).
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bftrainer.batch.directory_watch import Notice, notice_for


class UntrustedError(Exception):
    """Others can write to a file, or replace it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path
        self.why = why


def why_unsafe(status: os.stat_result, owner_uid: int) -> str:
    """Say why others can write to it; "" if they cannot."""
    if status.st_uid not in (0, owner_uid):
        return f"belongs to {name_of(status.st_uid)}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written by others (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def name_of(uid: int) -> str:
    """Return the name of a user id."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"user {uid}"


MOST_BYTES = 1 << 16  # about 700 lines; if there is more, it is skipped and a poll shows all
MOST_LINE_BYTES = 1 << 15
_NO_LINE = b"?"  # makes the rest of a line invalid
_HEAD_BYTES = 64  # of a new file, to find where its news begin


class Assembler(Protocol):
    """Assembles pieces of a file."""

    def add(self, piece: bytes, /) -> list[str]:
        """Return what this piece completed."""

    def skip(self) -> None:
        """Drop what is incomplete: part of the file was skipped."""


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

    def __init__(self, path: Path, lines: Callable[[], Assembler]) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._fd = os.open(path, flags)
        self._new_lines, self._lines = lines, lines()
        self._at = 0

    def to_end(self) -> None:
        """Skip what is in the file now."""
        self._at = os.fstat(self._fd).st_size
        if self._at and os.pread(self._fd, 1, self._at - 1) != b"\n":
            self._lines.skip()

    def to(self, begins: Callable[[bytes], int]) -> None:
        """Skip what a new file repeats."""
        at = begins(os.pread(self._fd, _HEAD_BYTES, 0))
        # Behind the end there are no news yet; in the midst of a line it is a mistake.
        at = min(max(at, 0), os.fstat(self._fd).st_size)
        self._at = at if at and os.pread(self._fd, 1, at - 1) == b"\n" else 0

    def why_unsafe(self, owner_uid: int) -> str:
        """Say why others may have written its lines; "" if they cannot."""
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"
        return why_unsafe(status, owner_uid)

    def is_at(self, path: Path) -> bool:
        """Return whether the path still names this file, or nothing."""
        try:
            return os.path.samestat(os.fstat(self._fd), path.lstat())
        except FileNotFoundError:
            return True

    def read(self) -> tuple[list[str], bool]:
        """Return the new lines, and whether too many were skipped."""
        size = os.fstat(self._fd).st_size
        if size < self._at:
            self._at, self._lines = 0, self._new_lines()
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


class Tail:
    """The end of a file that grows and that its writer replaces when it is full."""

    def __init__(
        self,
        path: Path,
        owner_uid: int,
        *,
        lines: Callable[[], Assembler] = Lines,
        begins: Callable[[bytes], int] = lambda _head: 0,
        notice: Callable[[Path], Notice] = notice_for,
    ) -> None:
        """Watch the file; what it contains already is not read.

        Args:
            path: of the file; its directory is watched, to notice a new one.
            owner_uid: besides root, the only one who may be able to write there.
            lines: assembles what is read.
            begins: where the news begin in a new file with such a head.
            notice: notices changes of the file.

        Raises:
            OSError: it is missing or cannot be read.
            UntrustedError: others could write there.
        """
        self._path, self._owner_uid = path, owner_uid
        self._new_lines, self._begins = lines, begins
        self._reading: _Reading | None = None
        self._notice: Notice | None = notice(path)
        try:
            self._directory = path.parent.stat()
            self._reading = _Reading(path, lines)
            self._check().to_end()
        except (OSError, UntrustedError):
            self.close()
            raise

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a line was appended."""
        return -1 if self._notice is None else self._notice.fileno()

    def read(self) -> tuple[list[str], bool]:
        """Return the lines since the last call, and whether too many were skipped.

        Raises:
            OSError: it can no longer be read.
            UntrustedError: others could write there.
        """
        if self._notice is not None:
            self._notice.clear()
        reading = self._check()
        lines, is_too_much = reading.read()
        if not reading.is_at(self._path):
            self._reading = _Reading(self._path, self._new_lines)
            reading.close()
            fresh = self._check()
            fresh.to(self._begins)
            more, was_more = fresh.read()
            lines, is_too_much = lines + more, is_too_much or was_more
        return lines, is_too_much

    def close(self) -> None:
        """Stop watching; the file's writer is untouched."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        if self._notice is not None:
            self._notice.close()
            self._notice = None

    def _check(self) -> _Reading:
        """Return the open file, if no one else can write to it."""
        now, reading = self._path.parent.stat(), self._reading
        if reading is None or not os.path.samestat(now, self._directory):
            raise FileNotFoundError(0, "its directory was replaced")
        unsafe = {
            self._path.parent: why_unsafe(now, self._owner_uid),
            self._path: reading.why_unsafe(self._owner_uid),
        }
        for path, why in unsafe.items():
            if why:
                raise UntrustedError(path, why)
        return reading
