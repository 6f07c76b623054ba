"""Parses records of lsb.events into announcements. Pure but for earlier records.

Words are separated by blanks; texts are quoted, with quotes in them doubled. Users write the texts:
so reading takes linear time, and nothing is kept that was not asked for.

A record ends at a line break outside quotes. mbatchd doubles a quote inside a text but writes line
breaks as they are (volclava 2.2), and a user may submit from a directory whose name contains one:
what follows it may look like any user's record. So records with line breaks in them are dropped.
In names of files to copy (``bsub -f``) quotes are not doubled: one leaves its record open, and what
follows is dropped, too. ``DROPPED`` says so, and the daemon polls instead.

Called by ``watch`` with whole records. The order of fields is that of lsb.events(5), IBM Spectrum
LSF 10.1, and of volclava 2.2's records; where the two differ, and where optional fields stand,
texts are told from numbers by their quotes. A known record that does not fit makes the daemon poll.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from bftrainer.batch.announcer import Announcement
from bftrainer.model.cluster import STAND_IN
from bftrainer.model.hostlist import ParseError
from lsf_adapters.requests import JobRow, LsfRequest, asked_hosts, job_of

LONGEST_RECORD = 1 << 15  # characters
# Possessive, so that an unpaired quote is looked for once.
_WORD = re.compile(r'[ \t]*+(?:"((?:[^"]++|"")*+)"|([^\s"]++))(?=[ \t]|$)')
_WHOLE = re.compile(r"-?[0-9]{1,19}")  # 64 bits
_REAL = re.compile(r"-?[0-9]{1,19}(?:\.[0-9]{1,19})?(?:e[+-][0-9]{1,3})?")
DROPPED: Final = "?"  # in place of records that were dropped
MOST_RECORD_BYTES = 1 << 15  # longer ones are dropped
# A quote that never ends must not hide all later records. No user can write that much into one.
MOST_HIDDEN_BYTES = 1 << 18
MOST_JOBS = 1 << 15  # remembered, of each kind
MOST_NAMES = 1 << 18  # of hosts of jobs that run
MOST_SLOTS = 1 << 17  # of a job: texts in one record
_HISTORY_S = 60.0  # older than the newest JOB_NEW by this: repeated, not new
_N_PATHS = 8  # fromHost, cwd, chkpntDir, inFile, outFile, errFile, subHomeDir, jobFile
_N_RUSAGE = 19  # of lsfRusage
_N_LIMITS, _RUN_LIMIT = 11, 9  # of rLimits
_EXCLUSIVE = 0x40  # in options; lsbatch.h, as are the following
_HELD = 0x1  # in options2
_PENDING = 0x1 | 0x2  # states: PEND, PSUSP
_ENDED = 0x20 | 0x40  # EXIT, DONE
_AFTERWARDS = 0x80 | 0x100  # post-processing ended: said of a job that has ended before
# What a poll may show: a job was changed, moved or requeued, a host or queue opened or closed.
_CHANGES = frozenset(
    {"JOB_MODIFY", "JOB_MODIFY2", "JOB_SWITCH", "JOB_SWITCH2", "JOB_MOVE", "JOB_REQUEUE"}
    | {"JOB_FORCE", "MIG", "HOST_CTRL", "QUEUE_CTRL"}
)
_KIND = re.compile(r'"([A-Z_0-9]{1,40})" "[0-9.]{1,20}" ([0-9]{1,10}) ')
_ON_HOST = re.compile(r"[0-9]{1,6}\*")  # SHORT_EVENTFILE of LSF_HPC_EXTENSIONS, lsf.conf(5)
_WAITS = "dependency condition not satisfied"
_LATER = "its begin time is to come"


class Words:
    """The words of a record, read one after the other.

    All methods raise ``ParseError`` if the next word is missing or of another kind.
    """

    def __init__(self, record: str) -> None:
        if len(record) > LONGEST_RECORD:
            raise ParseError(f"a record of {len(record)} characters")
        self._words: deque[re.Match[str]] = deque()
        at = 0
        while word := _WORD.match(record, at):
            self._words.append(word)
            at = word.end()

    def text(self) -> str:
        """Return the next word, a text."""
        quoted = self._take()[1]
        if quoted is None:
            raise ParseError("not a text")
        return quoted.replace('""', '"')

    def texts(self, count: int) -> tuple[str, ...]:
        """Return so many texts."""
        return tuple(self.text() for _ in range(count))

    def whole(self) -> int:
        """Return the next word, an integer."""
        bare = self._bare()
        if _WHOLE.fullmatch(bare) is None:
            raise ParseError("not an integer")
        return int(bare)

    def count(self, most: int = 1 << 62) -> int:
        """Return the next word, an integer from 0 to ``most``."""
        number = self.whole()
        if not 0 <= number <= most:
            raise ParseError("out of range")
        return number

    def real(self) -> float:
        """Return the next word, a finite number."""
        bare = self._bare()
        if _REAL.fullmatch(bare) is None:
            raise ParseError("not a number")
        number = float(bare)
        if not math.isfinite(number):  # its exponent is too large
            raise ParseError("not a number")
        return number

    def skip(self, count: int) -> None:
        """Skip so many words of any kind."""
        for _ in range(count):
            self._take()

    def skip_texts(self) -> None:
        """Skip texts up to the next number."""
        while self._words and self._words[0][1] is not None:
            self._words.popleft()

    def last_whole(self) -> int:
        """Skip integers up to the next text; return the last."""
        number = self.whole()
        while self._words and self._words[0][1] is None:
            number = self.whole()
        return number

    def _bare(self) -> str:
        word = self._take()
        if word[1] is not None:
            raise ParseError("not a number")
        return word[2]

    def _take(self) -> re.Match[str]:
        if not self._words:
            raise ParseError("too few words")
        return self._words.popleft()


class WholeRecords:
    """Assembles records; instead of torn, overlong and broken ones it returns ``DROPPED``."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the current record
        self._length = 0  # of the current record, kept or not
        self._is_quoted = False
        self._is_bad = False  # drop the current record when it ends
        self._ends_anyhow = False  # at the next line break: its begin was skipped

    def add(self, piece: bytes) -> list[str]:
        """Return the records completed by this piece."""
        records: list[str] = []
        end_of_line, *further_lines = piece.split(b"\n")
        self._extend(end_of_line)
        for line in further_lines:
            self._line_ends(records)
            self._extend(line)
        return records

    def skip(self) -> None:
        """Drop the current record: part of the file was skipped."""
        self._parts.clear()
        self._is_bad = self._ends_anyhow = True

    def _extend(self, part: bytes) -> None:
        self._is_quoted ^= part.count(b'"') % 2 == 1
        self._length += len(part)
        if self._length > MOST_RECORD_BYTES:
            self._is_bad = True
        if self._is_bad:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _line_ends(self, records: list[str]) -> None:
        self._length += 1
        if self._is_quoted and not self._ends_anyhow and self._length <= MOST_HIDDEN_BYTES:
            self._is_bad = True
            self._parts.clear()
            records.append(DROPPED)
            return
        if self._is_bad:
            records.append(DROPPED)
        elif self._parts:
            records.append(b"".join(self._parts).decode(errors="replace"))
        self._parts.clear()
        self._length = 0
        self._is_quoted = self._is_bad = self._ends_anyhow = False


@dataclass(slots=True, kw_only=True)
class EarlierRecords:
    """The contents of records of jobs that have not ended; bounded, the oldest are forgotten."""

    pilot_queue: str
    new: OrderedDict[int, float] = field(default_factory=OrderedDict)  # announced: time
    pilots: OrderedDict[int, float] = field(default_factory=OrderedDict)
    started: OrderedDict[tuple[int, int], tuple[str, ...]] = field(default_factory=OrderedDict)
    newest_s: float = 0.0  # of JOB_NEW
    n_names: int = 0  # in ``started``

    def note_new(self, job_id: int, queue: str, at_s: float) -> bool:
        """Remember a submission; return whether it is to be announced."""
        is_known = self.new.get(job_id, self.pilots.get(job_id)) == at_s
        is_history = at_s < self.newest_s - _HISTORY_S
        self.newest_s = max(self.newest_s, at_s)
        if is_known or is_history:
            return False
        self.pilots.pop(job_id, None)
        is_pilot = queue == self.pilot_queue
        jobs = self.new
        if is_pilot:
            jobs = self.pilots
        jobs[job_id] = at_s
        if len(jobs) > MOST_JOBS:
            jobs.popitem(last=False)
        return not is_pilot

    def note_started(self, job: tuple[int, int], nodes: tuple[str, ...]) -> None:
        """Remember where a job runs; () if it does not any more."""
        self.ended(job)
        if nodes:
            self.started[job] = nodes
            self.n_names += len(nodes)
        while len(self.started) > MOST_JOBS or self.n_names > MOST_NAMES:
            _, oldest_nodes = self.started.popitem(last=False)
            self.n_names -= len(oldest_nodes)

    def ended(self, job: tuple[int, int]) -> tuple[str, ...]:
        """Forget where a job ran, and return it; () if unknown."""
        nodes = self.started.pop(job, ())
        self.n_names -= len(nodes)
        return nodes


def announcements(
    records: Iterable[str], earlier: EarlierRecords, slots_of: Mapping[str, int]
) -> tuple[Announcement, ...]:
    """Parse the records that were read at once.

    volclava 2.2 does not double the quotes in names of files to copy (``bsub -f``), so a user
    may end their record early and add others. The torn one does not fit: then none is believed.

    Args:
        records: without their ends.
        earlier: is updated.
        slots_of: the nodes and their slots.

    Returns:
        The announcements, of those that call for a poll only one.
    """
    job_news: list[Announcement] = []
    look: Announcement | None = None
    for record in records:
        try:
            news = announcement(record, earlier, slots_of)
        except ParseError:
            return (_look(0.0),)
        if news is not None and (news.job or news.nodes):
            job_news.append(news)
        else:
            look = look or news
    if look is not None:
        return (*job_news, look)
    return tuple(job_news)


def announcement(
    record: str, earlier: EarlierRecords, slots_of: Mapping[str, int]
) -> Announcement | None:
    """Parse one record; None: there is nothing to announce.

    Raises:
        ParseError: it is known, but has other fields.
    """
    if record == DROPPED:
        return _look(0.0)
    head = _KIND.match(record)
    if head is None:
        return None
    kind, at_s = head[1], float(head[2])
    parse = {"JOB_NEW": _submitted, "JOB_START": _started, "JOB_STATUS": _changed}.get(kind)
    if parse is not None:
        return parse(Words(record[head.end() :]), at_s, earlier, slots_of)
    if kind in _CHANGES:
        return _look(at_s)
    return None


def _look(at_s: float) -> Announcement:
    """Return an announcement of nothing but that a poll will show something."""
    return Announcement(at_s=at_s, partition="")


def _submitted(
    words: Words, at_s: float, earlier: EarlierRecords, slots_of: Mapping[str, int]
) -> Announcement | None:
    job_id = words.count()
    row = _row(words, job_id, at_s)
    if not earlier.note_new(job_id, row.queue, at_s):
        return None
    # Its id is known: what it counts as, it counts as in polls, too.
    job = replace(job_of(row, slots_of), family=str(job_id))
    return Announcement(at_s=at_s, partition=row.queue, job=job)


def _row(words: Words, job_id: int, at_s: float) -> JobRow:
    """Parse a JOB_NEW record from its userId on."""
    words.whole()
    options, slots = words.whole(), words.count(MOST_SLOTS)
    submit_s, begin_s = float(words.count(1 << 40)), float(words.count(1 << 40))
    words.skip(4)  # termTime, sigValue, chkpntPeriod, restartPid
    user = words.text()
    limits = [words.whole() for _ in range(_N_LIMITS)]
    words.text()  # hostSpec
    factor = words.real()
    words.whole()  # umask
    queue, resources = words.texts(2)
    words.texts(_N_PATHS)
    hosts = words.texts(words.count(MOST_SLOTS))
    dependency = words.text()
    words.skip_texts()  # preExecCmd, postExecCmd if any, jobName, command
    words.skip(3 * words.count(MOST_SLOTS))  # xf
    words.skip_texts()  # mailUser, projectName
    slots_max = words.last_whole()  # after niosPort, if any
    words.skip_texts()  # schedHostType, loginShell; IBM: timeEvent, userGroup, exceptList
    is_held = bool(words.whole() & _HELD)
    words.whole()  # idx
    reasons = []
    if dependency:
        reasons.append(_WAITS)
    is_later = begin_s > at_s
    if is_later:
        reasons.append(_LATER)
    request = LsfRequest(
        slots=max(1, slots),
        slots_max=slots_max if slots < slots_max <= MOST_SLOTS else 0,
        resources=resources,
        limit_s=_limit_s(limits[_RUN_LIMIT], factor),
        begin_s=begin_s if is_later else None,
        hosts=asked_hosts(hosts),
        is_exclusive=bool(options & _EXCLUSIVE),
        dependency=dependency,
        is_held=is_held,
        reasons=tuple(reasons),
    )
    return JobRow(
        job_id=f"{STAND_IN}{job_id}",
        user=user,
        state="PSUSP" if is_held else "PEND",
        queue=queue,
        name="",
        submit_s=submit_s,
        asked=request,
    )


def _limit_s(limit: int, factor: float) -> float | None:
    """Return the run limit; it is written as if for a host of CPU factor 1 (volclava 2.2)."""
    if limit < 0:
        return None
    if factor <= 0.0:
        return float(limit)
    return float(round(limit / factor))


def _started(
    words: Words, _at_s: float, earlier: EarlierRecords, _slots_of: Mapping[str, int]
) -> None:
    """Remember where a job starts. Its poll shows it, so there is nothing to announce."""
    job_id = words.count()
    words.skip(3)  # jStatus, jobPid, jobPGid
    words.real()  # hostFactor
    hosts = words.texts(words.count(MOST_SLOTS))
    words.skip_texts()  # queuePreCmd, queuePostCmd
    words.whole()  # jFlags
    words.skip_texts()  # IBM: userGroup
    index = words.count()
    nodes = tuple(dict.fromkeys(_ON_HOST.sub("", host, count=1) for host in hosts))
    if job_id not in earlier.pilots:
        earlier.note_started((job_id, index), nodes)


def _changed(
    words: Words, at_s: float, earlier: EarlierRecords, _slots_of: Mapping[str, int]
) -> Announcement | None:
    """Parse JOB_STATUS."""
    job_id, status = words.count(), words.count()
    if not status & (_PENDING | _ENDED):
        return None
    words.skip(4)  # reason, subreasons, cpuTime, endTime
    if words.whole():
        words.skip(_N_RUSAGE)
    words.whole()  # exitStatus
    index = words.count()
    nodes = earlier.ended((job_id, index))
    if job_id in earlier.pilots:
        return None
    if status & _ENDED and nodes:
        return Announcement(at_s=at_s, partition="", nodes=nodes)
    if status & _AFTERWARDS:
        return None
    return _look(at_s)
