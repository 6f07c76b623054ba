"""slurmctld's log at level debug → cycles, and what became of each job. Pure but for reading.

Called by ``evaluate``. All times are epochs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from _bench.site.nodesets import NodeSet
from bftrainer.hostlist import expand

LONG_S = 12 * 3600.0  # limit of the one job that runs throughout
_LINE = re.compile(
    r"^\[(?P<at>[0-9T:.-]+)\] (?:"
    r"(?P<begin>.*backfill: beginning$)"
    r"|_slurm_rpc_submit_batch_job: JobId=(?P<submitted>\d+) InitPrio"
    r"|sched: Allocate JobId=(?P<main>\d+) NodeList=(?P<main_nodes>\S+) \S+"
    r" Partition=(?P<main_part>\w+)"
    r"|sched/backfill: _start_job: Started JobId=(?P<bf>\d+) in (?P<bf_part>\w+)"
    r" on (?P<bf_nodes>\S+)"
    r"|preempted JobId=(?P<victim>\d+) has been killed to reclaim resources for JobId=(?P<by>\d+)"
    r"|_job_complete: JobId=(?P<done>\d+) done"
    r"|job_signal: 9 of (?:running|pending) JobId=(?P<killed>\d+) successful)",
    re.MULTILINE,
)


@dataclass(slots=True, kw_only=True)
class Seen:
    """One job, a pilot or an ordinary one."""

    job_id: str
    submit_s: float
    n_nodes: int = 1
    limit_s: float = LONG_S
    is_of_stream: bool = False
    is_pilot: bool = False  # known from its start on
    start_s: float = math.inf
    end_s: float = math.inf
    nodes: NodeSet = 0
    by_backfill: bool = False

    def is_on_at(self, at_s: float) -> bool:
        """Whether it has its nodes."""
        return self.start_s <= at_s < self.end_s

    def waits_at(self, at_s: float) -> bool:
        """Whether it has neither started nor been cancelled."""
        return self.submit_s < at_s <= min(self.start_s, self.end_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """All that is read."""

    jobs: Mapping[str, Seen]
    cycles_s: tuple[float, ...]  # begins
    preempted: tuple[tuple[float, str, str], ...]  # when, which pilot, for whom


def read(text: str, stream: Iterable[str]) -> Log:
    """Read a log.

    Args:
        text: of the log.
        stream: the ordinary jobs, each as JSON.
    """
    asked = {row["job_id"]: row for row in map(json.loads, stream)}
    jobs: dict[str, Seen] = {}
    cycles_s: list[float] = []
    preempted: list[tuple[float, str, str]] = []
    for found in _LINE.finditer(text):
        at_s, is_ = datetime.fromisoformat(found["at"]).timestamp(), found.groupdict()
        if is_["begin"]:
            cycles_s.append(at_s)
        elif job_id := is_["submitted"]:
            jobs[job_id] = _submitted(job_id, at_s, asked.get(job_id))
        elif job_id := is_["main"] or is_["bf"]:
            job = jobs[job_id]
            job.start_s, job.by_backfill = at_s, is_["bf"] is not None
            job.is_pilot = "bf" in (is_["main_part"], is_["bf_part"])
            job.nodes = _bits(is_["main_nodes"] or is_["bf_nodes"] or "")
        elif job_id := is_["victim"]:
            preempted.append((at_s, job_id, is_["by"] or ""))
            jobs[job_id].end_s = min(jobs[job_id].end_s, at_s)
        elif job_id := is_["done"] or is_["killed"]:
            jobs[job_id].end_s = min(jobs[job_id].end_s, at_s)
    return Log(jobs=jobs, cycles_s=tuple(cycles_s), preempted=tuple(preempted))


def _submitted(job_id: str, at_s: float, row: Mapping[str, float] | None) -> Seen:
    if row is None:
        return Seen(job_id=job_id, submit_s=at_s)
    return Seen(
        job_id=job_id,
        submit_s=at_s,
        n_nodes=int(row["n_nodes"]),
        limit_s=60.0 * row["limit_min"],
        is_of_stream=True,
    )


def _bits(nodes: str) -> NodeSet:
    """Return the nodes n1, n2 and so on as bits."""
    return sum(1 << int(name[1:]) - 1 for name in expand(nodes))
