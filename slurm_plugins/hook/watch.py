"""Watches the hook's file and turns appended lines into announcements at once.

The adapter opens it, the daemon waits on its descriptor. Slurm's scripts create the file and
replace it when full; it is read only while no one but SlurmUser and root can write there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.tail import Faults, FollowedFile
from slurm_plugins.hook.lines import announcement
from slurm_plugins.hook.squeue_row import ClusterFacts


class Heard:
    """Turns lines of the hook into announcements."""

    def __init__(self, pilot_partition: str, cluster: Callable[[], ClusterFacts]) -> None:
        self._pilot_partition, self._cluster = pilot_partition, cluster
        self._number = 0

    def announcements(self, lines: Iterable[str], *, is_too_much: bool) -> tuple[Announcement, ...]:
        """Return what the lines say; of skipped ones, that a poll is wanted."""
        all_news = []
        if is_too_much:
            all_news.append(Announcement(at_s=0.0, partition=""))
        for line in lines:
            self._number += 1
            news = announcement(line, self._number, self._cluster())
            if news is not None and news.partition != self._pilot_partition:
                all_news.append(news)
        return tuple(all_news)


class HookFile(FollowedFile):
    """An ``Announcer`` that reads what ``scripts`` write."""

    faults = Faults(
        what="The hook's file",
        unread="BFT-1231",
        to_read="Slurm creates it when it loads the scripts of bftrainer-slurm-hook: write them, "
        "run 'scontrol reconfigure', and let the daemon's user read file and directory.",
        untrusted="BFT-1233",
        to_trust="Make {owner}, Slurm's user, its owner, and let no one else write there; "
        "bftrainer-slurm-hook creates such a directory.",
    )

    def __init__(
        self,
        path: Path,
        pilot_partition: str = "",
        *,
        owner_uid: int,
        cluster: Callable[[], ClusterFacts] = ClusterFacts,
    ) -> None:
        """Watch the file of SlurmUser or root; BFT-1231, -1233 if it cannot be used.

        Args:
            path: that the scripts append to.
            pilot_partition: lines about it are our own doing and ignored.
            owner_uid: SlurmUser.
            cluster: what completes the requests of announced jobs.
        """
        super().__init__(path, owner_uid)
        self._heard = Heard(pilot_partition, cluster)

    def read(self) -> tuple[Announcement, ...]:
        """Return the announcements since the last call; raises ``BatchSystemError``."""
        lines, is_too_much = self.lines()
        return self._heard.announcements(lines, is_too_much=is_too_much)
