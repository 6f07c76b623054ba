"""Reads the lines that another user appends to a file that only this user and root can write.

With write access to its directory, others could replace a file by a pipe, a link or a file of their
own; ``why_unsafe`` finds that, also for the commands that create such directories.

``FollowedFile`` is the base of the adapters' announcers (``slurm_plugins.hook.watch``,
``lsf_adapters.notifications.watch``).
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from bftrainer.batch.directory_watch import Notice, notice_for
from bftrainer.model.errors import BatchSystemError

MOST_BYTES = 1 << 16  # about 700 lines; if there is more, it is skipped and a poll shows all
MOST_LINE_BYTES = 1 << 15
_NO_LINE = b"?"  # makes the rest of a line invalid
_HEAD_BYTES = 64  # of a new file, to find where its news begin


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


def name_of(uid: int, otherwise: str = "") -> str:
    """Return the name of a user id, by default "user ID" where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return otherwise or f"user {uid}"


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
        self._fd = -1
        self._notice: Notice | None = notice(path)
        try:
            self._directory = path.parent.stat()
            self._open()
            self._check()
            self._skip_to_end()
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
        self._check()
        lines, is_too_much = self._read()
        if self._is_replaced():
            self._open()
            self._check()
            # Behind the end there are no news yet; in the midst of a line it is a mistake.
            at = self._begins(os.pread(self._fd, _HEAD_BYTES, 0))
            at = min(max(at, 0), os.fstat(self._fd).st_size)
            self._at = at if self._ends_a_line(at) else 0
            new_lines, was_more = self._read()
            lines, is_too_much = lines + new_lines, is_too_much or was_more
        return lines, is_too_much

    def close(self) -> None:
        """Stop watching; the file's writer is untouched."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._notice is not None:
            self._notice.close()
            self._notice = None

    def _open(self) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        before, self._fd = self._fd, os.open(self._path, flags)
        if before >= 0:
            os.close(before)
        self._at, self._lines = 0, self._new_lines()

    def _check(self) -> None:
        """Insist that no one else can write to the open file."""
        now = self._path.parent.stat()
        if self._fd < 0 or not os.path.samestat(now, self._directory):
            raise FileNotFoundError(0, "its directory was replaced")
        status = os.fstat(self._fd)
        unsafe = {self._path.parent: why_unsafe(now, self._owner_uid)}
        if stat.S_ISREG(status.st_mode):
            unsafe[self._path] = why_unsafe(status, self._owner_uid)
        else:
            unsafe[self._path] = "is not a regular file"
        for path, why in unsafe.items():
            if why:
                raise UntrustedError(path, why)

    def _skip_to_end(self) -> None:
        self._at = os.fstat(self._fd).st_size
        if self._at and not self._ends_a_line(self._at):
            self._lines.skip()

    def _ends_a_line(self, at: int) -> bool:
        return at > 0 and os.pread(self._fd, 1, at - 1) == b"\n"

    def _is_replaced(self) -> bool:
        """Return whether the path names another file."""
        try:
            return not os.path.samestat(os.fstat(self._fd), self._path.lstat())
        except FileNotFoundError:
            return False

    def _read(self) -> tuple[list[str], bool]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The errors of a source of notifications: two codes and next steps."""

    what: str  # begins the sentences
    unread: str
    to_read: str
    untrusted: str
    to_trust: str  # {owner}: who may write there
    owner: str = ""  # where no user id is known

    def error(
        self, problem: OSError | UntrustedError, path: Path, owner_uid: int | None
    ) -> BatchSystemError:
        """Return the error for what was raised about a path."""
        if isinstance(problem, OSError) and problem.errno == errno.ELOOP:
            problem = UntrustedError(path, "is a link")
        if isinstance(problem, OSError):
            why = f"{self.what} {path} cannot be read: {problem.strerror or problem}."
            return BatchSystemError(self.unread, why, self.to_read)
        owner = self.owner if owner_uid is None else name_of(owner_uid)
        why = f"{self.what} is not trusted: {problem}."
        return BatchSystemError(self.untrusted, why, self.to_trust.format(owner=owner))


class FollowedFile:
    """The base of announcers that follow a file; older lines are left to a poll."""

    hears_all = True
    faults: ClassVar[Faults]
    assembler: ClassVar[Callable[[], Assembler]] = Lines

    def __init__(
        self,
        path: Path,
        owner_uid: int | None,
        notice: Callable[[Path], Notice] = notice_for,
        begins: Callable[[bytes], int] = lambda _head: 0,
    ) -> None:
        """Watch the file, as ``Tail``; ``owner_uid`` None: whoever owns the directory.

        Raises:
            BatchSystemError: ``faults``; it cannot be read, or others could write there.
        """
        self._path, self._owner_uid = path, owner_uid
        with self._in_words():
            owner = path.parent.stat().st_uid if owner_uid is None else owner_uid
            self._owner_uid = owner
            lines = type(self).assembler
            self._tail = Tail(path, owner, lines=lines, begins=begins, notice=notice)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a line was appended."""
        return self._tail.fileno()

    def lines(self) -> tuple[list[str], bool]:
        """Return the lines since the last call, and whether too many were skipped.

        Raises:
            BatchSystemError: as on opening it.
        """
        with self._in_words():
            return self._tail.read()

    def close(self) -> None:
        """Stop watching; the file's writer goes on."""
        self._tail.close()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except (OSError, UntrustedError) as problem:
            raise self.faults.error(problem, self._path, self._owner_uid) from problem
