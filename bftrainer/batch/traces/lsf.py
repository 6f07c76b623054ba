"""LSF's accounting: ``lsb.acct`` files, and the text of ``bhist -a -UF``.

Both come in, idle fragments go out. Of an ``lsb.acct`` file the JOB_FINISH records are
read, of ``bhist`` the lines about submission, start and end of each job. Written from
IBM's description of the formats; see ``docs/reference/traces.md`` for what is taken from them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.jobs import NEVER_S, JobTable, idle_fragments, neighbours
from bftrainer.batch.traces.text import lsf_seconds, malformed, read_lines

Progress = Callable[[float], None]
_WORD = re.compile(r'"((?:[^"]|"")*)"|([^\s"]+)')
# Positions in a JOB_FINISH record: "JOB_FINISH" "version" event-time jobId userId options
# numProcessors submitTime beginTime termTime startTime userName queue resReq dependCond
# preExecCmd fromHost cwd inFile outFile errFile jobFile numAskedHosts askedHosts ...
_EVENT_TIME, _JOB_ID, _PROCESSORS, _SUBMIT, _BEGIN, _START, _QUEUE, _ASKED = (
    2,
    3,
    6,
    7,
    8,
    10,
    12,
    22,
)
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


def read_lsb_acct(
    path: Path,
    *,
    ignored_queues: Collection[str] = (),
    progress: Progress | None = None,
) -> Fragments:
    """Read JOB_FINISH records; other records are left out.

    The record has no time limit at a fixed place, so what is unfillable stays unknown.
    """
    table = JobTable(path=path)
    n_ignored = 0
    for number, line in read_lines(path, progress):
        if not line.startswith('"'):
            raise malformed(path, number, "this is not a record of lsb.acct")
        if not line.startswith('"JOB_FINISH"'):
            continue
        words = [
            quoted.replace('""', '"') if bare == "" else bare
            for quoted, bare in _WORD.findall(line)
        ]
        try:
            n_ignored += _finish_record(table, words, frozenset(ignored_queues), number)
        except (ValueError, IndexError, OverflowError) as problem:
            raise malformed(path, number, f"a broken JOB_FINISH record ({problem})") from problem
    _note(table, n_ignored)
    return idle_fragments(table, progress=progress)


def _finish_record(table: JobTable, words: list[str], ignored: frozenset[str], number: int) -> bool:
    """Add a record; return whether its queue is ignored."""
    if words[_QUEUE] in ignored:
        return True
    end_s, start_s = float(int(words[_EVENT_TIME])), float(int(words[_START]))
    int(words[_JOB_ID])
    from_s = float(max(int(words[_SUBMIT]), int(words[_BEGIN])))
    at = _ASKED + 1 + _count(words[_ASKED])
    hosts = words[at + 1 : at + 1 + _count(words[at])]
    int(words[at + 1 + len(hosts)])  # jStatus: fails unless the number of hosts is right
    names = _hosts(hosts)
    if not start_s:  # never started
        table.add_wait(from_s, end_s, max(1, len(names)), None, number)
        return False
    if end_s < start_s:
        raise ValueError("it ends before its start")
    if end_s > start_s:
        table.add_run(start_s, end_s, neighbours(table.index(name) for name in names), number)
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
        found = _HOST.fullmatch(word)
        if found is None:
            raise ValueError(f"{word[:40]!r} is not a host")
        names[found[1]] = None
    return list(names)


@dataclass(slots=True, kw_only=True)
class _Job:
    """The lines of bhist on the current job."""

    line: int
    queue: str = ""
    limit_s: float | None = None
    waits_since_s: float | None = None
    started_s: float | None = None
    hosts: list[str] = field(default_factory=list)
    slots: int = 0


def read_bhist(
    path: Path,
    *,
    zone: tzinfo,
    year: int,
    ignored_queues: Collection[str] = (),
    progress: Progress | None = None,
) -> Fragments:
    """Read ``bhist -a -UF`` (one event per line); ``year`` is that of times without one."""
    table = JobTable(path=path)
    job: _Job | None = None
    ignored = frozenset(ignored_queues)
    seen: Counter[str] = Counter()
    for number, line in read_lines(path, progress):
        text = line.strip()
        try:
            if _JOB.match(text):
                _finish(table, job, ignored, seen)
                job = _Job(line=number, queue=_named(text, "Queue"))
                seen["jobs"] += 1
            elif job is not None:
                _line(table, job, text, zone, year, is_ignored=job.queue in ignored)
        except (ValueError, OverflowError) as problem:
            raise malformed(path, number, str(problem)) from problem
    if not seen["jobs"]:
        raise malformed(path, None, "there is no 'Job <…>' in it", "Export with: bhist -a -UF.")
    _finish(table, job, ignored, seen)
    _note(table, seen["ignored"])
    return idle_fragments(table, progress=progress)


def _line(
    table: JobTable, job: _Job, text: str, zone: tzinfo, year: int, *, is_ignored: bool
) -> None:
    if found := _LIMIT.search(text):
        job.limit_s = 60.0 * float(found[1])
    found = _EVENT.fullmatch(text)
    if found is None or is_ignored:
        return
    at_s = lsf_seconds(found[1], zone, year, job.started_s or job.waits_since_s)
    told = found[2]
    if told.startswith("Submitted"):
        job.waits_since_s = at_s
    elif told.startswith(("Requeued", "Pending: Requeued")) or "requeued" in told[:60]:
        _end_run(table, job, at_s)
        job.waits_since_s = at_s
    elif started := _STARTED.match(told):
        _start_run(table, job, at_s, started[1], told)
    elif _ENDED.match(told):
        if job.started_s is None and job.waits_since_s is not None:
            table.add_wait(job.waits_since_s, at_s, max(1, job.slots), job.limit_s, job.line)
            job.waits_since_s = None
        _end_run(table, job, at_s)


def _start_run(table: JobTable, job: _Job, at_s: float, hosts: str, told: str) -> None:
    if job.started_s is not None:
        return  # "Starting (Pid …)" and the like, after the dispatch
    job.hosts = _hosts(_BRACKETS.findall(hosts))
    tasks = _TASKS.search(told)
    job.slots = int(tasks[1]) if tasks else len(job.hosts)
    job.started_s = at_s
    if job.waits_since_s is not None:
        table.add_wait(job.waits_since_s, at_s, len(job.hosts), job.limit_s, job.line)
        job.waits_since_s = None


def _end_run(table: JobTable, job: _Job, at_s: float) -> None:
    if job.started_s is None:
        return
    if at_s < job.started_s:
        raise ValueError("it ends before its start; is the year right?")
    if at_s > job.started_s:
        ranges = neighbours(table.index(name) for name in job.hosts)
        table.add_run(job.started_s, at_s, ranges, job.line)
    job.started_s = None


def _finish(table: JobTable, job: _Job | None, ignored: frozenset[str], seen: Counter[str]) -> None:
    """Finish a job; if it runs or waits, it does so to the end of the file."""
    if job is None:
        return
    if job.queue in ignored:
        seen["ignored"] += 1
    elif job.started_s is not None:
        ranges = neighbours(table.index(name) for name in job.hosts)
        table.add_run(job.started_s, NEVER_S, ranges, job.line)
    elif job.waits_since_s is not None:
        table.add_wait(job.waits_since_s, NEVER_S, max(1, job.slots), job.limit_s, job.line)


def _named(text: str, label: str) -> str:
    found = re.search(rf"{label} <([^<>]*)>", text)
    return found[1] if found else ""


def _note(table: JobTable, n_ignored: int) -> None:
    table.notes.append("hosts on which no job ran are not in LSF's history")
    if n_ignored:
        table.notes.append(f"{n_ignored} jobs of ignored queues count as idle")
