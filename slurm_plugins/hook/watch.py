"""The hook's file, watched: appended lines come out as announcements at once.

The adapter opens it, the daemon waits on its descriptor. The file exists only while a
daemon wants it; when much of it is read a fresh one takes its place, and what a writer
still adds to the old one is read, too. Source: inotify(7).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from bftrainer.errors import BatchSystemError
from bftrainer.poll.announcer import Announcement
from slurm_plugins.hook.lines import announcement

FRESH_AFTER_BYTES = 1 << 17  # an eighth of what the writers stop at
_IN_MODIFY = 0x2
_IN_NONBLOCK, _IN_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
_EVENTS_BYTES = 1 << 16


class HookFile:
    """An ``Announcer`` that reads what ``scripts`` write."""

    def __init__(
        self,
        path: Path,
        pilot_partition: str,
        cpus_per_node: Callable[[], int] = lambda: 0,
        is_deferred: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make the file and watch it.

        Args:
            path: what the scripts append to.
            pilot_partition: what happens there is our own doing, and no news.
            cpus_per_node: of the largest node.
            is_deferred: whether jobs are tried only after they were submitted.

        Raises:
            BatchSystemError: BFT-1231, it cannot be made or watched.
        """
        self._path, self._cpus_per_node, self._is_deferred = path, cpus_per_node, is_deferred
        self._pilot_partition = pilot_partition
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._number = 0
        self._older: BinaryIO | None = None
        self._rest = b""
        self._fd = -1
        try:
            self._fd = self._checked(self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
            self._file = self._make()
            self._file.seek(0, os.SEEK_END)  # what was said before we came, a look will show
        except OSError as problem:
            self._close_inotify()
            raise BatchSystemError(
                "BFT-1231",
                f"The hook's file {path} cannot be used: {problem.strerror or problem}.",
                "Give the daemon's user a directory it may write to (hook_file), or leave it out.",
            ) from problem

    def fileno(self) -> int:
        """Becomes readable when a line was appended."""
        return self._fd

    def read(self) -> tuple[Announcement, ...]:
        """Return what has been said since the last call."""
        with suppress(BlockingIOError):
            while len(os.read(self._fd, _EVENTS_BYTES)) == _EVENTS_BYTES:
                pass
        said = b""
        if self._older is not None:
            said = self._older.read()
        said = self._rest + said + self._file.read()
        *lines, self._rest = said.split(b"\n")
        if self._file.tell() > FRESH_AFTER_BYTES:
            self._begin_afresh()
        found = []
        for line in lines:
            self._number += 1
            text = line.decode(errors="replace")
            news = announcement(
                text, self._number, self._cpus_per_node(), is_deferred=self._is_deferred()
            )
            if news is not None and news.partition != self._pilot_partition:
                found.append(news)
        return tuple(found)

    def close(self) -> None:
        """Take the file away, so that nobody writes any more."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        for file in (self._file, self._older):
            if file is not None:
                file.close()
        self._close_inotify()

    def _begin_afresh(self) -> None:
        """Put an empty file in its place; writers open it anew for every line."""
        if self._older is not None:
            self._older.close()
        self._older = self._file
        self._path.rename(self._path.with_name(self._path.name + ".read"))
        self._file = self._make()
        self._path.with_name(self._path.name + ".read").unlink(missing_ok=True)

    def _make(self) -> BinaryIO:
        # Its group may write: that is Slurm's own, by the directory's set-group-id bit.
        handle = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
        file = os.fdopen(handle, "rb")
        if os.fstat(handle).st_uid == os.geteuid():
            self._path.chmod(0o660)  # whatever the umask says
        self._checked(self._libc.inotify_add_watch(self._fd, os.fsencode(self._path), _IN_MODIFY))
        return file

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def _close_inotify(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
