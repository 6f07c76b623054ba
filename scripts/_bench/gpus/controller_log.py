"""slurmctld's log at level debug → cycles, and when each pilot ran and why it ended. Pure.

Nothing here comes from bftrainer's own records, so that a daemon that is wrong about its pilots
does not judge itself. The lines are those of Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

PILOTS = "bf"  # the partition
_STAMP = r"^\[([0-9T:.-]+)\] "
_CYCLE = re.compile(rf"{_STAMP}.*backfill: beginning$", re.MULTILINE)
_SUBMITTED = re.compile(rf"{_STAMP}_slurm_rpc_submit_batch_job: JobId=(\d+) ", re.MULTILINE)
_BY_BACKFILL = re.compile(
    rf"{_STAMP}sched/backfill: _start_job: Started JobId=(\d+) in (\S+) on (\S+)$", re.MULTILINE
)
_BY_MAIN = re.compile(
    rf"{_STAMP}sched: Allocate JobId=(\d+) NodeList=(\S+) .*Partition=(\S+)$", re.MULTILINE
)
_PREEMPTED = re.compile(
    rf"{_STAMP}preempted JobId=(\d+) has been killed to reclaim resources for JobId=(\d+)",
    re.MULTILINE,
)
_COMPLETED = re.compile(rf"{_STAMP}_job_complete: JobId=(\d+) done$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotRun:
    """One pilot, from its start to its end; times are seconds since the epoch."""

    job_id: str
    node: str
    started_s: float
    ended_s: float  # infinite: it was still running when the log was read
    is_preempted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerLog:
    """What slurmctld noted of a run."""

    cycles_s: tuple[float, ...]  # begins of backfill
    n_submitted: int  # pilots, whether or not they ran
    pilots: tuple[PilotRun, ...]


def read(text: str, ordinary: Collection[str], from_s: float) -> ControllerLog:
    """Read a log.

    Args:
        text: the log.
        ordinary: ids of the jobs that are not pilots; of an array, the array's.
        from_s: pilots that were submitted earlier are not counted as submitted (epoch).
    """
    ends_s: dict[str, float] = {}
    for at, job_id in _COMPLETED.findall(text):
        ends_s.setdefault(job_id, _epoch_s(at))
    preempted = set()
    for at, job_id, _ in _PREEMPTED.findall(text):
        preempted.add(job_id)
        ends_s[job_id] = min(_epoch_s(at), ends_s.get(job_id, float("inf")))
    begins = [(at, job_id, node) for at, job_id, node, part in _BY_MAIN.findall(text)
              if part == PILOTS]  # fmt: skip
    begins += [(at, job_id, node) for at, job_id, part, node in _BY_BACKFILL.findall(text)
               if part == PILOTS]  # fmt: skip
    pilots = [
        PilotRun(
            job_id=job_id,
            node=node,
            started_s=_epoch_s(at),
            ended_s=ends_s.get(job_id, float("inf")),
            is_preempted=job_id in preempted,
        )
        for at, job_id, node in sorted(begins)
    ]
    submitted = [
        job_id
        for at, job_id in _SUBMITTED.findall(text)
        if job_id not in ordinary and _epoch_s(at) >= from_s
    ]
    return ControllerLog(
        cycles_s=tuple(_epoch_s(at) for at in _CYCLE.findall(text)),
        n_submitted=len(submitted),
        pilots=tuple(pilots),
    )


def _epoch_s(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
