"""Watches lsb.events and turns appended records into announcements at once.

The adapter opens it, the daemon waits on its descriptor. mbatchd appends to the file, and after
MAX_JOB_NUM finished jobs it puts another in its place, which begins with what the old one said of
living jobs: its first line says where the news begin. Source: lsb.events(5), IBM Spectrum LSF 10.1.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.directory_watch import Notice, notice_for
from bftrainer.batch.tail import Tail, UntrustedError, name_of
from bftrainer.model.errors import BatchSystemError
from lsf_adapters.notifications import NOT_POLLED
from lsf_adapters.notifications.records import EarlierRecords, WholeRecords, announcements

_HEADER = re.compile(rb"#[ \t]*([0-9]{1,15})[ \t]*\n")


class EventsFile:
    """An ``Announcer`` that reads what mbatchd logs."""

    hears_all = True

    def __init__(
        self,
        path: Path,
        pilot_queue: str,
        *,
        owner_uid: int | None = None,
        slots_of: Callable[[], Mapping[str, int]] = dict,
        notice: Callable[[Path], Notice] = notice_for,
    ) -> None:
        """Watch the file; older records are not read, because a poll shows those jobs.

        Args:
            path: LSB_SHAREDIR/CLUSTER/logdir/lsb.events.
            pilot_queue: records about its jobs are our own doing and ignored.
            owner_uid: the LSF administrator; None: whoever owns the directory.
            slots_of: the nodes and their slots, as last known.
            notice: notices changes of the file.

        Raises:
            BatchSystemError: BFT-1211, it is missing or cannot be read; BFT-1212, others than
                the administrator could write there.
        """
        self._path, self._slots_of, self._owner_uid = path, slots_of, owner_uid
        self._earlier = EarlierRecords(pilot_queue=pilot_queue)
        try:
            if owner_uid is None:
                self._owner_uid = owner_uid = path.parent.stat().st_uid
            self._tail = Tail(path, owner_uid, lines=WholeRecords, begins=news_begin, notice=notice)
        except (OSError, UntrustedError) as problem:
            raise self._unusable(problem) from problem

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a record was appended."""
        return self._tail.fileno()

    def read(self) -> tuple[Announcement, ...]:
        """Return the announcements since the last call.

        Raises:
            BatchSystemError: it can no longer be used; codes as for opening it.
        """
        try:
            records, is_too_much = self._tail.read()
        except (OSError, UntrustedError) as problem:
            raise self._unusable(problem) from problem
        said = announcements(records, self._earlier, self._slots_of() or NOT_POLLED)
        return (Announcement(at_s=0.0, partition=""), *said) if is_too_much else said

    def close(self) -> None:
        """Stop watching."""
        self._tail.close()

    def _unusable(self, problem: OSError | UntrustedError) -> BatchSystemError:
        if isinstance(problem, UntrustedError):
            return self._unsafe(problem.path, problem.why)
        if problem.errno == errno.ELOOP:
            return self._unsafe(self._path, "is a link")
        return BatchSystemError(
            "BFT-1211",
            f"LSF's events file {self._path} cannot be read: {problem.strerror or problem}.",
            "It is LSB_SHAREDIR/CLUSTER/logdir/lsb.events of lsf.conf; let the daemon's user "
            "read it and enter its directory (for example: setfacl -m u:USER:rx on the directory, "
            "u:USER:r as its default), or leave the option out: the daemon then only polls.",
        )

    def _unsafe(self, path: Path, why: str) -> BatchSystemError:
        owner = "the LSF administrator" if self._owner_uid is None else name_of(self._owner_uid)
        return BatchSystemError(
            "BFT-1212",
            f"LSF's events file is not trusted: {path} {why}.",
            f"Let only {owner} and root write there (chmod go-w), and name the file itself, "
            "not a link to it.",
        )


def news_begin(head: bytes) -> int:
    """Return where the news begin in a new file: after what its first line calls history."""
    found = _HEADER.match(head)
    return int(found[1]) if found else 0
