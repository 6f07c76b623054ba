"""The jobs of Slurm's accounting as they were submitted, to be played again.

Text with a header comes in, as for ``sacct``; jobs that ran go out, with their true sizes and
times, and sentences on what the file lacks. Columns that are missing have a stated consequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bftrainer.batch.traces import sacct
from bftrainer.batch.traces.sacct import Row, RunReader, RunTimes, read_rows
from bftrainer.batch.traces.text import Progress, ReadOptions, duration_s, malformed
from bftrainer.batch.traces.window import LEAST_LEFT, Coverage

COMMAND = f"{sacct.COMMAND},User,Priority,ReqTRES"
_NOTHING = frozenset({"", "(null)", "Unknown", "None", "N/A"})
_CONSEQUENCES = (
    (("Priority",), "jobs start in the order in which they became eligible (Priority is missing)"),
    (
        ("AllocTRES", "ReqTRES"),
        "jobs have whole nodes (AllocTRES and ReqTRES are missing)",
    ),
    (("Timelimit",), "jobs have the limits of their partitions (Timelimit is missing)"),
    (
        ("Eligible", "Submit"),
        "jobs became eligible when they started (Eligible and Submit are missing)",
    ),
    (("NNodes",), "jobs asked for the nodes that they had (NNodes is missing)"),
    (("Partition",), "the partition of no job is told (Partition is missing)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedJob:
    """A job that ran; times in seconds of the epoch."""

    job_id: str  # 12, or 12_3 of an array
    user: str
    partition: str
    eligible_s: float
    start_s: float
    end_s: float  # infinite: it still ran
    limit_s: float | None  # None: not told
    n_nodes: int
    priority: float | None  # None: not told
    tres: str  # of all its nodes together, as Slurm writes it; "": not told

    @property
    def array(self) -> str:
        """The number of its array; "": it is none of one."""
        base, is_task, _ = self.job_id.partition("_")
        return base if is_task else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog:
    """The jobs of a file."""

    jobs: tuple[AccountedJob, ...]  # by the time at which they became eligible
    begin_s: float  # of the time for which the file lists all jobs
    end_s: float
    n_never_ran: int
    n_ignored: int  # of ignored partitions
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def read_jobs(path: Path, options: ReadOptions, progress: Progress | None = None) -> JobLog:
    """Read the output of ``COMMAND``.

    Raises:
        TraceError: BFT-4001, a line cannot be read; BFT-4008, no job ran.
    """
    reader, ignored = RunReader(path, options), {*options.ignored} - {""}
    jobs, columns = list[AccountedJob](), set[str]()
    n_never_ran = n_ignored = 0
    for number, row in read_rows(path, progress):
        columns = columns or set(row)
        times = reader.take_row(row, number)
        if times is None:
            continue
        if row.get("Partition", "") in ignored:
            n_ignored += 1
            continue
        try:
            job = _job(row, times, reader.n_nodes)
        except (ValueError, OverflowError) as problem:
            raise malformed(path, number, str(problem)) from problem
        n_never_ran += job is None
        if job is not None:
            jobs.append(job)
    coverage = reader.coverage()
    begin_s, end_s = _window(coverage, options)
    lacks = [text for names, text in _CONSEQUENCES if columns.isdisjoint(names)]
    return JobLog(
        jobs=tuple(sorted(jobs, key=lambda job: (job.eligible_s, job.start_s, job.job_id))),
        begin_s=begin_s,
        end_s=end_s,
        n_never_ran=n_never_ran,
        n_ignored=n_ignored,
        notes=tuple(lacks),
        warnings=tuple(reader.table.warnings),
    )


def _window(coverage: Coverage, options: ReadOptions) -> tuple[float, float]:
    """Return the time to play: what the user names, else that for which the file is complete."""
    begin_s, end_s = coverage.complete_s
    first_s, last_s = coverage.recorded_s
    if end_s - begin_s < LEAST_LEFT * (last_s - first_s):
        begin_s, end_s = first_s, last_s
    if options.start_s is not None:
        begin_s = options.start_s
    if options.end_s is not None:
        end_s = options.end_s
    return begin_s, end_s


def _job(row: Row, times: RunTimes, count: Callable[[str], int]) -> AccountedJob | None:
    """Return the job of a row; None: it never ran. ``count``: nodes of a list."""
    nodes = row["NodeList"]
    if times.start_s is None or nodes in {"None assigned", *_NOTHING}:
        return None
    if times.end_s <= times.start_s:
        return None
    size = row.get("NNodes") or row.get("ReqNodes", "")
    n_nodes = count(nodes)
    if size.isdecimal() and int(size) > 0:
        n_nodes = int(size)
    eligible_s = times.start_s
    if times.eligible_s is not None:
        eligible_s = min(times.eligible_s, times.start_s)
    priority = row.get("Priority", "")
    tres = (row.get("AllocTRES", ""), row.get("ReqTRES", ""))
    return AccountedJob(
        job_id=row["JobID"],
        user=row.get("User", ""),
        partition=row.get("Partition", ""),
        eligible_s=eligible_s,
        start_s=times.start_s,
        end_s=times.end_s,
        limit_s=duration_s(row.get("Timelimit", "")),
        n_nodes=n_nodes,
        priority=_priority(priority),
        tres=next((text for text in tres if text not in _NOTHING), ""),
    )


def _priority(text: str) -> float | None:
    if text in _NOTHING:
        return None
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"Priority is {text[:40]!r}")
    return value
