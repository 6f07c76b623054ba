"""Watches the directory into which ``esub`` writes, one file per user.

For sites where lsb.events cannot be read. A user writes the file and may write anything: it counts
for its owner alone, whatever it says, and only if it is new; a job that no poll shows is soon not
believed (``bftrainer.batch.announcer``).

The directory is shared by submission hosts, so it is looked at by a thread: its time tells whether
a file was moved into it. A user can fill it; then jobs of others are announced late or not at all,
and polls show them.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from bftrainer.batch.announcer import Announcement
from bftrainer.batch.directory_watch import LOOK_S, Looking
from bftrainer.batch.tail import Faults, UntrustedError, name_of
from bftrainer.model.cluster import STAND_IN
from lsf_adapters.notifications import NOT_POLLED
from lsf_adapters.notifications.script import FIRST_LINE, KEYS, MOST_BYTES
from lsf_adapters.requests import JobRow, LsfRequest, asked_hosts, job_of

LONGEST_FILE = len(FIRST_LINE) + MOST_BYTES + 2  # bytes
MOST_SLOTS = 1 << 17
_LINE = re.compile(r"LSB_SUB_([A-Z_]{1,30})=(.*)")
_COUNT = re.compile(r"[0-9]{1,12}")
_ESCAPED = re.compile(r"\\(.)")
MOST_FILES = 4096  # users' files looked at
MOST_ENTRIES = 4 * MOST_FILES  # of the directory
MOST_WAITING = 256  # announcements that were not read yet
FRESH_S = 30.0  # older files are from before; clocks may differ by that
_AGAIN_S = 2.0  # after a change: the directory's time may be coarser than changes
_FILE = re.compile(r"u([0-9]{1,10})")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FAULTS = Faults(
    what="The directory of esub's files",
    unread="BFT-1213",
    to_read="Create it with mode 1733 for the daemon's user, on a file system that all submission "
    "hosts share, or leave the option out: the daemon then only polls.",
    untrusted="BFT-1214",
    to_trust="Make {owner} its owner and its mode 1733.",
)


def submission(
    text: str, *, user: str, at_s: float, number: int, slots_of: Mapping[str, int]
) -> Announcement | None:
    """Parse a file; None: it is none of the script's, or changes an earlier job.

    Args:
        text: of the file.
        user: its owner.
        at_s: when it was written.
        number: becomes part of the job's stand-in id.
        slots_of: the nodes and their slots.
    """
    first, *lines = text[: 2 * LONGEST_FILE].split("\n")
    if first != FIRST_LINE:
        return None
    value_of: dict[str, str] = {}
    for line in lines:
        setting = _LINE.fullmatch(line)
        if setting and setting[1] in KEYS:
            value_of.setdefault(setting[1], _unquoted(setting[2]))  # of several the first
    if "MODIFY" in value_of:
        return None
    queues = value_of.get("QUEUE", "").split()
    row = JobRow(
        job_id=f"{STAND_IN}{number}",
        user=user,
        state="PSUSP" if value_of.get("HOLD") == "Y" else "PEND",
        queue=queues[0] if len(queues) == 1 else "",
        name="",
        submit_s=at_s,
        asked=_request(value_of, at_s),
    )
    job = job_of(row, slots_of)
    if not row.queue:
        job = replace(job, partitions=())  # the default one, or any of several
    return Announcement(at_s=at_s, partition=row.queue, job=job)


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return _ESCAPED.sub(r"\1", value[1:-1])
    return value


def _request(value_of: Mapping[str, str], at_s: float) -> LsfRequest:
    def count(key: str) -> int:
        text = value_of.get(key, "")
        if _COUNT.fullmatch(text) is None:
            return 0
        return int(text)

    slots = max(1, min(count("NUM_PROCESSORS"), MOST_SLOTS))
    slots_max = min(count("MAX_NUM_PROCESSORS"), MOST_SLOTS)
    limit_s: float | None = float(count("RLIMIT_RUN")) or None
    reasons = []
    dependency = value_of.get("DEPEND_COND", "")
    if dependency:
        reasons.append("it waits for its dependency")
    begin_s: float | None = None
    begin_time_s = float(count("BEGIN_TIME"))
    if begin_time_s > at_s:
        begin_s = begin_time_s
        reasons.append("it waits for its begin")
    return LsfRequest(
        slots=slots,
        slots_max=slots_max if slots_max > slots else 0,
        resources=value_of.get("RES_REQ", ""),
        limit_s=limit_s,
        begin_s=begin_s,
        hosts=asked_hosts(value_of.get("HOSTS", "").split()),
        is_exclusive=value_of.get("EXCLUSIVE") == "Y",
        dependency=dependency,
        is_held=value_of.get("HOLD") == "Y",
        reasons=tuple(reasons),
    )


class SubmissionFiles:
    """An ``Announcer`` that reads what the scripts of users write.

    It announces each file once: a job that is announced twice looks refused, and its user would
    not be believed for a while.
    """

    hears_all = True

    def __init__(
        self,
        place: Path,
        pilot_queue: str,
        *,
        owner_uid: int | None = None,
        slots_of: Callable[[], Mapping[str, int]] = dict,
        every_s: float = LOOK_S,
    ) -> None:
        """Watch the directory; files that are there already are not read.

        Args:
            place: the directory of the script.
            pilot_queue: submissions to it are our own doing and ignored.
            owner_uid: the directory's owner, unless root is; None: the daemon's user.
            slots_of: the nodes and their slots, as last known.
            every_s: between two looks.

        Raises:
            BatchSystemError: BFT-1213, it is missing or cannot be listed; BFT-1214, others could
                replace users' files.
        """
        self._place, self._pilot_queue, self._slots_of = place, pilot_queue, slots_of
        if owner_uid is None:
            owner_uid = os.geteuid()
        self._owner_uid = owner_uid
        self._known: dict[str, tuple[int, int]] = {}
        self._time_ns, self._changed_s = 0, 0.0
        self._number = 0
        self._waiting: deque[Announcement] = deque(maxlen=MOST_WAITING)
        self._look()
        self._waiting.clear()
        self._looking = Looking(self._look, every_s=every_s)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a file was written."""
        return self._looking.fileno()

    def read(self) -> tuple[Announcement, ...]:
        """Return the announcements since the last call.

        Raises:
            BatchSystemError: it can no longer be used; codes as for opening it.
        """
        self._looking.clear()
        news: list[Announcement] = []
        with suppress(IndexError):
            while len(news) < MOST_WAITING:
                news.append(self._waiting.popleft())
        return tuple(news)

    def close(self) -> None:
        """Stop watching; users' scripts keep replacing their files."""
        self._looking.close()

    def _look(self) -> bool:
        """Look for new files, in the thread; return whether there is something to read."""
        try:
            directory = os.open(self._place, _OPEN | os.O_DIRECTORY)
            try:
                before = self._number
                if self._has_changed(os.fstat(directory)):
                    self._waiting.extend(self._news(directory))
                return self._number > before
            finally:
                os.close(directory)
        except (OSError, UntrustedError) as problem:  # the reader's
            raise _FAULTS.error(problem, self._place, self._owner_uid) from problem

    def _has_changed(self, status: os.stat_result) -> bool:
        """Check who owns the directory; return whether a file may have been moved into it."""
        if status.st_uid not in (0, self._owner_uid):
            raise UntrustedError(self._place, f"belongs to {name_of(status.st_uid)}")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
            raise UntrustedError(self._place, "may be written by others and is not sticky")
        now_s = time.monotonic()
        if status.st_mtime_ns != self._time_ns:
            self._time_ns, self._changed_s = status.st_mtime_ns, now_s
        return now_s - self._changed_s <= _AGAIN_S

    def _news(self, directory: int) -> Iterator[Announcement]:
        """Read the files that are new or were replaced."""
        state_of, slots_of = dict(_files(directory)), self._slots_of() or NOT_POLLED
        names = [name for name, state in state_of.items() if self._known.get(name) != state]
        self._known = state_of
        for name in names[:MOST_WAITING]:
            self._number += 1
            news = self._told(directory, name, slots_of)
            if news is not None and news.partition != self._pilot_queue:
                yield news

    def _told(self, directory: int, name: str, slots_of: Mapping[str, int]) -> Announcement | None:
        try:
            fd = os.open(name, _OPEN, dir_fd=directory)
        except OSError:  # replaced meanwhile, a link, or not readable: this user is not announced
            return None
        try:
            status = os.fstat(fd)
            self._known[name] = _state(status)  # replaced meanwhile: it is not read again
            is_his = stat.S_ISREG(status.st_mode) and name == f"u{status.st_uid}"
            # Users can set a file's time, but not its change time.
            if not is_his or abs(time.time() - status.st_ctime) > FRESH_S:
                return None
            text = os.read(fd, LONGEST_FILE).decode(errors="replace")
        finally:
            os.close(fd)
        return submission(
            text,
            user=name_of(status.st_uid),
            at_s=float(int(status.st_ctime)),
            number=self._number,
            slots_of=slots_of,
        )


def _files(directory: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield users' files with what changes when one is replaced."""
    n_files = 0
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number >= MOST_ENTRIES or n_files >= MOST_FILES:
                return
            if _FILE.fullmatch(entry.name) is None:
                continue
            n_files += 1
            with suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                yield entry.name, _state(status)


def _state(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_ctime_ns
