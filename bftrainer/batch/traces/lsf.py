"""LSF's accounting: ``lsb.acct`` files, and the text of ``bhist -a -UF``.

Both come in, idle fragments go out. Of an ``lsb.acct`` file the JOB_FINISH records are
read, of ``bhist`` the lines about submission, start and end of each job. Written from
IBM's description of the formats; see ``docs/reference/traces.md`` for what is taken from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.batch.traces.jobs import NEVER_S, JobTable, idle_fragments, need_runs, neighbours
from bftrainer.batch.traces.text import (
    NO_ZONE,
    Progress,
    ReadOptions,
    lsf_seconds,
    malformed,
    read_lines,
    time_zone,
)
from bftrainer.batch.traces.window import Coverage, RecordedTimes

_WORD = re.compile(r'"((?:[^"]|"")*)"|([^\s"]+)')
# Positions in a JOB_FINISH record: "JOB_FINISH" "version" event-time jobId userId options
# numProcessors submitTime beginTime termTime startTime userName queue resReq dependCond
# preExecCmd fromHost cwd inFile outFile errFile jobFile numAskedHosts askedHosts ...
_EVENT_TIME, _JOB_ID, _SUBMIT, _BEGIN, _START, _QUEUE, _ASKED = 2, 3, 7, 8, 10, 12, 22
_HOST = re.compile(r"(?:[0-9]{1,6}\*)?([^\s*<>]{1,255})")
_JOB = re.compile(r"Job <([0-9]+)(?:\[[0-9]+\])?>")
_EVENT = re.compile(
    r"([A-Z][a-z]{2} [A-Z][a-z]{2} +[0-9]{1,2} [0-9:]{8}(?: [0-9]{4})?): (.*)", re.DOTALL
)
_STARTED = re.compile(r"(?:\[[0-9]+\] )?(?:[Ss]tarted|[Dd]ispatched)\b.*?((?:<[^<>]*>[ ,]*)+)")
_ENDED = re.compile(
    r"(?:\[[0-9]+\] )?(?:Done successfully|Exited|Completed|Signal <KILL>|Termination)"
)
_LIMIT = re.compile(r"RUNLIMIT\s+([0-9]+(?:\.[0-9]+)?) min")
_TASKS = re.compile(r"([0-9]+) (?:Task|Processor)\(?s?\)?")
_BRACKETS = re.compile(r"<([^<>]*)>")


def read_lsb_acct(path: Path, options: ReadOptions, progress: Progress | None) -> Fragments:
    """Read JOB_FINISH records; other records are left out.

    The record has no time limit at a fixed place, so what is unfillable stays unknown.
    """
    table, times = JobTable(path=path), RecordedTimes()
    n_ignored = 0
    for number, line in read_lines(path, progress):
        if not line.startswith('"'):
            raise malformed(path, number, "this is not a record of lsb.acct")
        if not line.startswith('"JOB_FINISH"'):
            continue
        words = [bare or quoted.replace('""', '"') for quoted, bare in _WORD.findall(line)]
        try:
            n_ignored += _finish_record(table, times, words, frozenset(options.ignored), number)
        except (ValueError, IndexError, OverflowError) as problem:
            raise malformed(path, number, f"a broken JOB_FINISH record ({problem})") from problem
    _note(table, n_ignored)
    need_runs(table)
    longest_h = times.longest_run_s / HOUR_S
    coverage = Coverage(
        recorded_s=times.recorded_s(),
        complete_s=(times.first_end_s, times.last_end_s - times.longest_run_s),
        why=f"lsb.acct lists jobs when they end, and the longest took {longest_h:.1f} h",
        is_proven=False,
    )
    return idle_fragments(table, coverage, options, progress=progress)


def _finish_record(
    table: JobTable, times: RecordedTimes, words: list[str], ignored: frozenset[str], number: int
) -> bool:
    """Add a record; return whether its queue is ignored."""
    end_s, start_s = float(int(words[_EVENT_TIME])), float(int(words[_START]))
    int(words[_JOB_ID])
    from_s = float(max(int(words[_SUBMIT]), int(words[_BEGIN])))
    at = _ASKED + 1 + _count(words[_ASKED])
    hosts = words[at + 1 : at + 1 + _count(words[at])]
    int(words[at + 1 + len(hosts)])  # jStatus: fails unless the number of hosts is right
    names = _hosts(hosts)
    times.ended(end_s)
    if words[_QUEUE] in ignored:  # its time is idle, but its hosts exist
        for name in names:
            table.index(name)
        return True
    if not start_s:  # never started
        table.add_wait(from_s, end_s, max(1, len(names)), None, number)
        return False
    if end_s < start_s:
        raise ValueError("it ends before its start")
    if end_s > start_s:
        times.ran(start_s, end_s)
        ranges = neighbours(map(table.index, names))
        table.add_run(start_s, end_s, ranges, number, partition=words[_QUEUE])
    table.add_wait(from_s, start_s, len(names), None, number)
    return False


def _count(word: str) -> int:
    count = int(word)
    if not 0 <= count <= 10_000_000:
        raise ValueError(f"{count} hosts")
    return count


def _hosts(words: Collection[str]) -> list[str]:
    """Return the names without repetition; ``42*h1`` is 42 slots on h1."""
    names: dict[str, None] = {}
    for word in words:
        match = _HOST.fullmatch(word)
        if match is None:
            raise ValueError(f"{word[:40]!r} is not a host")
        names[match[1]] = None
    return list(names)


def read_bhist(path: Path, options: ReadOptions, progress: Progress | None) -> Fragments:
    """Read ``bhist -a -UF`` (one event per line); the year is that of times without one."""
    history = _History(path, options)
    for number, line in read_lines(path, progress):
        try:
            history.take(line.strip(), number)
        except (ValueError, OverflowError) as problem:
            raise malformed(path, number, str(problem)) from problem
    history.finish()
    if not history.has_jobs:
        raise malformed(path, None, "there is no 'Job <…>' in it", "Export with: bhist -a -UF.")
    _note(history.table, history.n_ignored)
    if options.time_zone is None:
        history.table.warnings.append(NO_ZONE)
    need_runs(history.table)
    coverage = Coverage(
        recorded_s=(history.seen.first_start_s, history.last_event_s),
        complete_s=(history.seen.first_end_s, history.last_event_s),
        why="bhist lists no job that ended before the first of its events files begins",
    )
    return idle_fragments(history.table, coverage, options, progress=progress)


class _History:
    """The jobs of bhist; those of the current one are its last attributes."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.table, self.n_ignored, self.has_jobs = JobTable(path=path), 0, False
        self.seen, self.last_event_s = RecordedTimes(), -math.inf
        self._zone, self._ignored = time_zone(options.time_zone), options.ignored
        self._year = options.year or datetime.now(UTC).year
        self._begin(0, "")

    def _begin(self, line: int, queue: str) -> None:
        self._line, self._queue = line, queue
        self._waits_since_s: float | None = None
        self._started_s: float | None = None
        self._limit_s: float | None = None
        self._ended_s = math.inf
        self._hosts, self._slots = list[str](), 0

    def take(self, text: str, number: int) -> None:
        """Read a line."""
        if _JOB.match(text):
            self.finish()
            self.has_jobs = True
            self._begin(number, _named(text, "Queue"))
            return
        if not self.has_jobs:
            return
        limit = _LIMIT.search(text)
        if limit:
            self._limit_s = 60.0 * float(limit[1])
        event = _EVENT.fullmatch(text)
        if event is not None and self._queue not in self._ignored:
            before_s = self._started_s or self._waits_since_s
            at_s = lsf_seconds(event[1], self._zone, self._year, before_s)
            self.last_event_s = max(self.last_event_s, at_s)
            self._event(at_s, event[2])

    def finish(self) -> None:
        """Finish the job; if it runs or waits, it does so to the end of the file."""
        if not self.has_jobs:
            return
        self.n_ignored += self._queue in self._ignored
        self.seen.ended(self._ended_s)
        if self._started_s is not None:
            self._add_run(NEVER_S)
        elif self._waits_since_s is not None:
            self._add_wait(NEVER_S, max(1, self._slots))

    def _event(self, at_s: float, told: str) -> None:
        if told.startswith("Submitted"):
            self._waits_since_s = at_s
        elif told.startswith(("Requeued", "Pending: Requeued")) or "requeued" in told[:60]:
            self._add_run(at_s)
            self._waits_since_s, self._ended_s = at_s, math.inf
        elif started := _STARTED.match(told):
            if self._started_s is not None:
                return  # "Starting (Pid …)" and the like, after the dispatch
            self._hosts = _hosts(_BRACKETS.findall(started[1]))
            tasks = _TASKS.search(told)
            self._slots = len(self._hosts)
            if tasks:
                self._slots = int(tasks[1])
            self._started_s, self._ended_s = at_s, math.inf
            self._add_wait(at_s, len(self._hosts))
        elif _ENDED.match(told):
            self._ended_s = at_s
            if self._started_s is None:
                self._add_wait(at_s, max(1, self._slots))
            self._add_run(at_s)

    def _add_wait(self, to_s: float, n_nodes: int) -> None:
        if self._waits_since_s is not None:
            limit_s = self._limit_s
            self.table.add_wait(self._waits_since_s, to_s, n_nodes, limit_s, self._line)
            self._waits_since_s = None

    def _add_run(self, end_s: float) -> None:
        if self._started_s is None:
            return
        if end_s < self._started_s:
            raise ValueError("it ends before its start; is the year right?")
        if end_s > self._started_s:
            self.seen.ran(self._started_s, end_s)
            ranges = neighbours(map(self.table.index, self._hosts))
            self.table.add_run(self._started_s, end_s, ranges, self._line, partition=self._queue)
        self._started_s = None


def _named(text: str, label: str) -> str:
    match = re.search(rf"{label} <([^<>]*)>", text)
    return match[1] if match else ""


def _note(table: JobTable, n_ignored: int) -> None:
    table.notes.append("hosts on which no job ran are not in LSF's history")
    if n_ignored:
        table.notes.append(f"{n_ignored} jobs of ignored queues count as idle")
