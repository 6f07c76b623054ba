"""Watches the hook's file and turns appended lines into announcements at once.

The adapter opens it, the daemon waits on its descriptor. Slurm's scripts create the file and
replace it when full; ``bftrainer.batch.tail`` reads it, only while no one but SlurmUser and root
can write there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from pathlib import Path

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.tail import MOST_BYTES, MOST_LINE_BYTES, Lines, Tail, UntrustedError, name_of
from bftrainer.model.errors import BatchSystemError
from slurm_plugins.hook.lines import announcement

__all__ = ["MOST_BYTES", "MOST_LINE_BYTES", "Heard", "HookFile", "Lines"]


class Heard:
    """Turns lines of the hook into announcements."""

    def __init__(self, pilot_partition: str, cpus_per_node: Callable[[], int]) -> None:
        self._pilot_partition, self._cpus_per_node = pilot_partition, cpus_per_node
        self._number = 0

    def announcements(self, lines: Iterable[str], *, is_too_much: bool) -> tuple[Announcement, ...]:
        """Return what the lines say; of skipped ones, that a poll is wanted."""
        said = [Announcement(at_s=0.0, partition="")] if is_too_much else []
        for line in lines:
            self._number += 1
            news = announcement(line, self._number, self._cpus_per_node())
            if news is not None and news.partition != self._pilot_partition:
                said.append(news)
        return tuple(said)


class HookFile:
    """An ``Announcer`` that reads what ``scripts`` write."""

    hears_all = True

    def __init__(
        self,
        path: Path,
        pilot_partition: str = "",
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
        self._path, self._owner_uid = path, owner_uid
        self._heard = Heard(pilot_partition, cpus_per_node)
        try:
            self._tail = Tail(path, owner_uid)
        except (OSError, UntrustedError) as problem:
            raise self._unusable(problem) from problem

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a line was appended."""
        return self._tail.fileno()

    def read(self) -> tuple[Announcement, ...]:
        """Return the announcements since the last call.

        Raises:
            BatchSystemError: it can no longer be used; codes as for opening it.
        """
        lines, is_too_much = self.lines()
        return self._heard.announcements(lines, is_too_much=is_too_much)

    def lines(self) -> tuple[list[str], bool]:
        """Return the lines since the last call, and whether too many were skipped.

        Raises:
            BatchSystemError: as ``read``.
        """
        try:
            return self._tail.read()
        except (OSError, UntrustedError) as problem:
            raise self._unusable(problem) from problem

    def close(self) -> None:
        """Stop watching; the scripts keep writing, into a file of bounded size."""
        self._tail.close()

    def _unusable(self, problem: OSError | UntrustedError) -> BatchSystemError:
        if isinstance(problem, UntrustedError):
            return self._unsafe(problem.path, problem.why)
        if problem.errno == errno.ELOOP:
            return self._unsafe(self._path, "is a link")
        return BatchSystemError(
            "BFT-1231",
            f"The hook's file {self._path} cannot be read: {problem.strerror or problem}.",
            "Slurm creates it when it loads the scripts of bftrainer-slurm-hook: write them, run "
            "'scontrol reconfigure', and let the daemon's user read file and directory.",
        )

    def _unsafe(self, path: Path, why: str) -> BatchSystemError:
        return BatchSystemError(
            "BFT-1233",
            f"The hook's file is not trusted: {path} {why}.",
            f"Make {name_of(self._owner_uid)}, Slurm's user, its owner, and let no one else write "
            "there; bftrainer-slurm-hook creates such a directory.",
        )
