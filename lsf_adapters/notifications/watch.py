"""Watches lsb.events and turns appended records into announcements at once.

The adapter opens it, the daemon waits on its descriptor. mbatchd appends to the file, and after
MAX_JOB_NUM finished jobs it puts another in its place, which begins with what the old one said of
living jobs: its first line says where the news begin. Source: lsb.events(5), IBM Spectrum LSF 10.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.directory_watch import Notice, notice_for
from bftrainer.batch.tail import Faults, FollowedFile
from lsf_adapters.notifications import NOT_POLLED
from lsf_adapters.notifications.records import EarlierRecords, WholeRecords, announcements

_HEADER = re.compile(rb"#[ \t]*([0-9]{1,15})[ \t]*\n")


class EventsFile(FollowedFile):
    """An ``Announcer`` that reads what mbatchd logs."""

    assembler = WholeRecords
    faults = Faults(
        what="LSF's events file",
        owner="the LSF administrator",
        unread="BFT-1211",
        to_read="It is LSB_SHAREDIR/CLUSTER/logdir/lsb.events of lsf.conf; let the daemon's user "
        "read it and enter its directory (for example: setfacl -m u:USER:rx on the directory, "
        "u:USER:r as its default), or leave the option out: the daemon then only polls.",
        untrusted="BFT-1212",
        to_trust="Let only {owner} and root write there (chmod go-w), and name the file itself, "
        "not a link to it.",
    )

    def __init__(
        self,
        path: Path,
        pilot_queue: str,
        *,
        owner_uid: int | None = None,
        slots_of: Callable[[], Mapping[str, int]] = dict,
        notice: Callable[[Path], Notice] = notice_for,
    ) -> None:
        """Watch the file; BFT-1211, -1212 if it cannot be used.

        Args:
            path: LSB_SHAREDIR/CLUSTER/logdir/lsb.events.
            pilot_queue: records about its jobs are our own doing and ignored.
            owner_uid: the LSF administrator; None: whoever owns the directory.
            slots_of: the nodes and their slots, as last known.
            notice: notices changes of the file.
        """
        super().__init__(path, owner_uid, notice, news_begin)
        self._slots_of, self._earlier = slots_of, EarlierRecords(pilot_queue=pilot_queue)

    def read(self) -> tuple[Announcement, ...]:
        """Return the announcements since the last call; raises ``BatchSystemError``."""
        records, is_too_much = self.lines()
        news = announcements(records, self._earlier, self._slots_of() or NOT_POLLED)
        if is_too_much:  # what was skipped calls for a poll
            news = (Announcement(at_s=0.0, partition=""), *news)
        return news


def news_begin(head: bytes) -> int:
    """Return where the news begin in a new file: after what its first line calls history."""
    header = _HEADER.match(head)
    if header is None:
        return 0
    return int(header[1])
