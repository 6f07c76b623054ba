"""Notices changes in a directory: by inotify, or by looking at it again and again.

Called by ``tail`` and by adapters. inotify reports only what this host did (inotify(7),
"Limitations and caveats"), so a directory on a remote file system is looked at by a thread. It
alone waits if the file system's server does not answer.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LOOK_S = 0.2  # between two looks
_JOIN_S = 1.0  # for a thread that ends; one that waits for a file server is left behind
# Modify, attrib, moved from, moved to, create, delete; delete and move of the directory itself.
_IN_CHANGES = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800
_IN_ONLYDIR = 0x1000000
_EVENTS_BYTES = 1 << 16
# Where inotify sees every change: ext2 to ext4, xfs, btrfs, tmpfs, overlayfs, zfs, ramfs, f2fs,
# bcachefs. Source: statfs(2), linux/magic.h.
_LOCAL = frozenset(
    {0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0x2FC12FC1, 0x858458F6}
    | {0xF2F52010, 0xCA451A4E}
)
_STATFS_LONGS = 32  # more than struct statfs has; f_type is its first
_MASK = 0xFFFFFFFF  # magic numbers have 32 bits


class Notice:
    """The base of sources of hints that there may be something to read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """Return a descriptor that becomes readable after a change."""
        return self._fd

    def clear(self) -> None:
        """Forget the changes so far; never blocks."""

    def close(self) -> None:
        """Stop noticing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Inotify(Notice):
    """Notices changes of a directory that this host makes."""

    def __init__(self, directory: Path) -> None:
        """Watch a directory; raises ``OSError``: it is missing, or may not be read."""
        libc = ctypes.CDLL(None, use_errno=True)
        super().__init__(_checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)))
        try:
            name = os.fsencode(directory)
            _checked(libc.inotify_add_watch(self._fd, name, _IN_CHANGES | _IN_ONLYDIR))
        except OSError:
            self.close()
            raise

    def clear(self) -> None:
        """Read and drop all events."""
        with suppress(BlockingIOError):
            while len(os.read(self._fd, _EVENTS_BYTES)) == _EVENTS_BYTES:
                pass


class Looking(Notice):
    """Calls a function in a thread, every so often; notices when it returns True.

    What the function raises is raised by the next ``clear``, and it is called no more.
    """

    def __init__(self, look: Callable[[], bool], *, every_s: float = LOOK_S) -> None:
        """Start the thread; ``look``: whether something changed; ``every_s``: between two calls."""
        super().__init__(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._look, self._every_s = look, every_s
        self._problem: Exception | None = None
        self._ends, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="bft-looking", daemon=True)
        self._thread.start()

    def clear(self) -> None:
        """Forget the changes so far; raise what the function raised."""
        if self._problem is not None:
            raise self._problem
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """End the thread; one that waits for a file server ends when that answers."""
        self._ends.set()
        self._thread.join(_JOIN_S)
        with self._lock:  # no write to a descriptor that is somebody else's by then
            super().close()

    def _run(self) -> None:
        while not self._ends.wait(self._every_s):
            try:
                is_new = self._look()
            except Exception as problem:  # noqa: BLE001 - raised to the reader
                self._problem = problem
                self._ends.set()
                is_new = True
            with self._lock:
                if is_new and self._fd >= 0:
                    os.eventfd_write(self._fd, 1)


class FileChanged:
    """A check of one file: appended to, cut or replaced since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: tuple[int, int] | None = None

    def __call__(self) -> bool:
        """Open it, because that asks a file server for its present size (nfs(5))."""
        fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        now = (status.st_ino, status.st_size)
        is_new, self._last = now != self._last, now
        return is_new


def is_local(path: Path) -> bool:
    """Return whether inotify sees all changes there, False in doubt; raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = (ctypes.c_long * _STATFS_LONGS)()
    _checked(libc.statfs(os.fsencode(path), buffer))
    return (buffer[0] & _MASK) in _LOCAL


def notice_for(path: Path) -> Notice:
    """Return what notices changes of a file; ``OSError`` if its directory may not be read."""
    if is_local(path.parent):
        return Inotify(path.parent)
    return Looking(FileChanged(path))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
