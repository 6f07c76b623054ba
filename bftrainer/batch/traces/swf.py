"""The Standard Workload Format of the Parallel Workloads Archive (version 2.2).

A log file comes in, idle fragments go out. SWF says how many processors a job had, not
which: each job is given the lowest free nodes when it starts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.batch.traces.jobs import JobTable, idle_fragments, need_runs
from bftrainer.batch.traces.text import Progress, ReadOptions, TraceError, malformed, read_lines
from bftrainer.batch.traces.window import Coverage, RecordedTimes

FIELDS = 18
MAX_NODES = 2_000_000
_SUBMIT, _WAIT, _RUN, _PROCESSORS, _REQUESTED, _LIMIT = 1, 2, 3, 4, 7, 8


@dataclass(frozen=True, slots=True)
class _Job:
    """One line: times in seconds."""

    submit_s: float
    start_s: float
    end_s: float
    processors: int
    limit_s: float | None
    line: int


@dataclass(slots=True, kw_only=True)
class _Log:
    """Header and jobs of one file."""

    path: Path
    n_nodes: int = 0
    n_processors: int = 0
    origin_s: float = 0.0
    jobs: list[_Job] = field(default_factory=list)

    def nodes_of(self, processors: int) -> int:
        """Return the number of whole nodes for so many processors."""
        return min(math.ceil(processors * self.n_nodes / self.n_processors), self.n_nodes)


def read_swf(path: Path, options: ReadOptions, progress: Progress | None) -> Fragments:
    """Read an SWF log; nodes are called n00000, n00001 and so on."""
    log = _Log(path=path)
    table = JobTable(path=path)
    for number, line in read_lines(path, progress):
        if line.lstrip().startswith(";"):
            _header(log, number, line)
        else:
            _job(log, number, line)
    _size_machine(log, table)
    width = max(5, len(str(log.n_nodes - 1)))
    names = [f"n{i:0{width}d}" for i in range(log.n_nodes)]
    _place(log, table)
    for job in log.jobs:
        n_nodes = log.nodes_of(job.processors)
        table.add_wait(job.submit_s, job.start_s, n_nodes, job.limit_s, job.line)
    need_runs(table)
    return idle_fragments(table, _coverage(log), options, names=names, progress=progress)


def _coverage(log: _Log) -> Coverage:
    """Return for which time the jobs are complete, whether they were chosen by submission or end.

    A job that is missing at the beginning was submitted before the first one, or ended before the
    first end; one that is missing at the end was submitted after the last one, or did not end.
    """
    times = RecordedTimes()
    for job in log.jobs:
        times.eligible(job.submit_s)
        if job.end_s > job.start_s:
            times.ran(job.start_s, job.end_s, job.submit_s)
            times.ended(job.end_s)
    end_s = min(times.last_eligible_s, times.last_end_s - times.longest_run_s)
    return Coverage(
        recorded_s=times.recorded_s(),
        complete_s=(times.first_eligible_s + times.longest_stay_s, end_s),
        why="jobs from before the log, and jobs that had not ended with it, are missing, and the "
        f"longest was {times.longest_stay_s / HOUR_S:.1f} h in the system",
        is_proven=False,
    )


def _header(log: _Log, number: int, line: str) -> None:
    label, _, value = line.lstrip("; \t").partition(":")
    label, words = label.strip().lower(), value.split()
    if label not in {"maxnodes", "maxprocs", "unixstarttime"} or not words:
        return
    try:
        count = int(words[0])
    except ValueError:
        raise malformed(log.path, number, f"{label} is {words[0][:40]!r}, no number") from None
    if label == "unixstarttime":
        log.origin_s = float(max(0, count))
    elif not 0 <= count <= MAX_NODES * 1024 or (label == "maxnodes" and count > MAX_NODES):
        raise malformed(log.path, number, f"{label} {count} is not a plausible machine size")
    elif label == "maxnodes":
        log.n_nodes = count
    else:
        log.n_processors = count


def _job(log: _Log, number: int, line: str) -> None:
    cells = line.split()
    if len(cells) != FIELDS:
        raise malformed(log.path, number, f"{len(cells)} fields, not {FIELDS}")
    try:
        values = list(map(float, cells))
    except ValueError:
        raise malformed(log.path, number, "a field is not a number") from None
    if not all(abs(value) < 1e11 for value in values):
        raise malformed(log.path, number, "a field is not a plausible number")
    submit_s = log.origin_s + values[_SUBMIT]
    processors = int(values[_PROCESSORS] if values[_PROCESSORS] > 0 else values[_REQUESTED])
    if values[_SUBMIT] < 0 or processors <= 0 or values[_WAIT] < 0:
        return  # -1: not recorded, so the job is left out
    start_s = submit_s + values[_WAIT]
    limit_s = values[_LIMIT] if values[_LIMIT] > 0 else None
    end_s = start_s + values[_RUN]
    log.jobs.append(_Job(submit_s, start_s, end_s, processors, limit_s, number))


def _size_machine(log: _Log, table: JobTable) -> None:
    """Determine the numbers of nodes and processors; note what was guessed."""
    ran = [job.processors for job in log.jobs if job.end_s > job.start_s]
    if not ran:
        raise TraceError("BFT-4008", f"{log.path.name}: no job in it ran.", "Give another log.")
    if not log.n_processors and not log.n_nodes:
        log.n_processors = log.n_nodes = max(ran)
        table.notes.append(
            f"no MaxNodes and no MaxProcs in the header: {log.n_nodes} nodes of one "
            "processor, as many as the largest job had"
        )
    log.n_nodes = log.n_nodes or log.n_processors
    log.n_processors = log.n_processors or log.n_nodes
    log.n_processors = max(log.n_processors, log.n_nodes)
    if log.n_nodes > MAX_NODES:
        raise malformed(log.path, None, f"a machine of {log.n_nodes} nodes")


def _place(log: _Log, table: JobTable) -> None:
    """Assign the lowest free nodes to each job at its start; ends precede starts."""
    free = _Free(log.n_nodes)
    jobs = [job for job in log.jobs if job.end_s > job.start_s]
    at_s = np.array([*(job.start_s for job in jobs), *(job.end_s for job in jobs)])
    order = np.lexsort((np.arange(2 * len(jobs)) < len(jobs), at_s))
    has: dict[int, list[tuple[int, int]]] = {}
    n_short = 0
    for i in order.tolist():
        if i >= len(jobs):
            free.give_back(has.pop(i - len(jobs)))
            continue
        n_nodes = log.nodes_of(jobs[i].processors)
        has[i] = free.take(n_nodes)
        n_short += sum(count for _, count in has[i]) < n_nodes
        table.add_run(jobs[i].start_s, jobs[i].end_s, has[i], jobs[i].line)
    if n_short:
        table.notes.append(
            f"{n_short} of {len(jobs)} jobs found too few free nodes (several share a node, or "
            "the times are rounded): they are counted on those that were free"
        )


class _Free:
    """Free nodes as ranges (first, count) in ascending order."""

    def __init__(self, n_nodes: int) -> None:
        self._ranges = [(0, n_nodes)]

    def take(self, n_nodes: int) -> list[tuple[int, int]]:
        """Take the lowest ``n_nodes`` free nodes, or all."""
        ranges: list[tuple[int, int]] = []
        n_lacking = n_nodes
        for first, count in self._ranges:
            if count > n_lacking:
                break
            ranges.append((first, count))
            n_lacking -= count
        del self._ranges[: len(ranges)]
        if n_lacking and self._ranges:
            first, count = self._ranges[0]
            ranges.append((first, n_lacking))
            self._ranges[0] = first + n_lacking, count - n_lacking
        return ranges

    def give_back(self, ranges: list[tuple[int, int]]) -> None:
        """Free nodes; adjacent ranges are merged."""
        for first, count in ranges:
            at = bisect_left(self._ranges, (first, 0))
            before, behind = self._ranges[max(0, at - 1) : at], self._ranges[at : at + 1]
            low, high = first, first + count
            if behind and behind[0][0] == high:
                high += behind.pop()[1]
            if before and sum(before[0]) == low:
                low = before.pop()[0]
            self._ranges[max(0, at - 1) : at + 1] = [*before, (low, high - low), *behind]
