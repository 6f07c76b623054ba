"""slurmctld's log at level debug → when its schedulers ran, and when jobs came, started and ended.

All times are seconds since the epoch, to the millisecond. A job is named as users name it: ``35``,
or ``35_2`` for a task of an array. The lines are those of Slurm 22.05. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from bftrainer.model.hostlist import expand

_STAMP = r"^\[([0-9T:.-]+)\] "
_JOB = r"JobId=(\d+(?:_\d+)?)(?:\(\d+\))?"  # behind a task's name in brackets: its own number
_CYCLE = re.compile(rf"{_STAMP}.*backfill: beginning$", re.MULTILINE)
_PASS = re.compile(rf"{_STAMP}.*sched: Running job scheduler for (\S+) ", re.MULTILINE)
_FULL = "full"  # as the log has it: the whole queue
_ACCEPTED = re.compile(rf"{_STAMP}_slurm_rpc_submit_batch_job: {_JOB} ", re.MULTILINE)
_BY_BACKFILL = re.compile(
    rf"{_STAMP}sched/backfill: _start_job: Started {_JOB} in (\S+) on (\S+)$", re.MULTILINE
)
_BY_MAIN = re.compile(
    rf"{_STAMP}sched: Allocate {_JOB} NodeList=(\S+) .*Partition=(\S+)$", re.MULTILINE
)
_COMPLETED = re.compile(rf"{_STAMP}_job_complete: {_JOB} done$", re.MULTILINE)
_PREEMPTED = re.compile(rf"{_STAMP}preempted {_JOB} has been killed to reclaim", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStart:
    """A job's start."""

    at_s: float
    nodes: tuple[str, ...]
    partition: str
    by_backfill: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLog:
    """All of a log that a comparison needs; the mappings are by job."""

    cycles_s: tuple[float, ...]  # begins of backfill
    passes_s: tuple[float, ...]  # of the main scheduler
    full_passes_s: tuple[float, ...]  # of these, over the whole queue
    accepted_s: Mapping[str, float]  # of sbatch; an array has one entry, without a task
    starts: Mapping[str, LoggedStart]
    ends_s: Mapping[str, float]  # of what was preempted: when it was cancelled
    preempted: frozenset[str]


def read(text: str) -> SlurmLog:
    """Read a log."""
    passes = [(_epoch_s(at), depth) for at, depth in _PASS.findall(text)]
    ends_s = _times(_COMPLETED, text)
    cancels_s = _times(_PREEMPTED, text)
    for job, at_s in cancels_s.items():
        ends_s[job] = min(at_s, ends_s.get(job, at_s))
    return SlurmLog(
        cycles_s=cycles_s(text),
        passes_s=tuple(at_s for at_s, _ in passes),
        full_passes_s=tuple(at_s for at_s, depth in passes if depth == _FULL),
        accepted_s=_times(_ACCEPTED, text),
        starts=dict(_starts(text)),
        ends_s=ends_s,
        preempted=frozenset(cancels_s),
    )


def cycles_s(text: str) -> tuple[float, ...]:
    """Return when the cycles of backfill began."""
    return tuple(map(_epoch_s, _CYCLE.findall(text)))


def _times(line: re.Pattern[str], text: str) -> dict[str, float]:
    return {job: _epoch_s(at) for at, job in line.findall(text)}


def _starts(text: str) -> Iterator[tuple[str, LoggedStart]]:
    for at, job, nodes, partition in _BY_MAIN.findall(text):
        yield job, _start(at, nodes, partition, by_backfill=False)
    for at, job, partition, nodes in _BY_BACKFILL.findall(text):
        yield job, _start(at, nodes, partition, by_backfill=True)


def _start(at: str, nodes: str, partition: str, *, by_backfill: bool) -> LoggedStart:
    return LoggedStart(
        at_s=_epoch_s(at),
        nodes=tuple(expand(nodes)),
        partition=partition,
        by_backfill=by_backfill,
    )


def _epoch_s(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
