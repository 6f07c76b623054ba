"""Workloads of ordinary jobs: read, submitted, and replayed without pilots.

The demo and the tests write workloads. ``requests`` starts one, and ``server`` submits its jobs at
their times: it calls ``WorkloadProgress`` in every iteration. The demo calls ``delays_s`` with the
server's history.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bftrainer.batch.local.cluster import JobRequest, LocalCluster
from bftrainer.batch.local.scheduler import LocalAllocation, PendingJob, run_pass
from bftrainer.model.errors import BatchSystemError, ExitCode, UsageError
from milp.plain import Form, codec, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One ordinary job of a workload; ``at_s`` counts from the start of the workload."""

    at_s: float
    n_nodes: int
    duration_s: float
    limit_s: float
    user: str = "alice"

    def __post_init__(self) -> None:
        """Refuse what can never run as described."""
        if self.at_s < 0:
            raise ValueError("at_s must not be negative")
        if self.n_nodes < 1 or self.duration_s <= 0 or self.limit_s <= 0:
            raise ValueError("n_nodes, duration_s and limit_s must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWorkload:
    """Jobs in order of time; with ``repeat_s`` they repeat after that time."""

    jobs: tuple[WorkItem, ...]
    repeat_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse a period that ends before its last job."""
        last_s = max((job.at_s for job in self.jobs), default=0.0)
        if self.repeat_s is not None and not max(1.0, last_s) <= self.repeat_s < math.inf:
            raise ValueError("repeat_s must be at least 1 and not before the last job")


def workload_from_json(data: object) -> JobWorkload:
    """Read ``[{...}, ...]`` or ``{"jobs": [...], "repeat_s": 60}``.

    Raises:
        ValueError: with a sentence that says what is wrong with which job.
    """
    if not isinstance(data, dict):
        data = {"jobs": data}
    workload: JobWorkload = codec(JobWorkload, Form()).decode(data)
    return replace(workload, jobs=tuple(sorted(workload.jobs, key=lambda job: job.at_s)))


def load_workload(path: Path) -> JobWorkload:
    """Read a workload file.

    Raises:
        UsageError: BFT-1257, it cannot be read or says something impossible.
    """
    try:
        return workload_from_json(parse(path.read_bytes()))
    except (OSError, ValueError) as problem:
        raise UsageError(
            "BFT-1257",
            f"The workload file {path} cannot be used: {problem}.",
            "Correct the file and start again.",
            exit_code=ExitCode.VALIDATION_FAILED,
        ) from problem


def workload_to_json(workload: JobWorkload) -> dict[str, Any]:
    """Write what ``workload_from_json`` reads."""
    document: dict[str, Any] = codec(JobWorkload, Form()).encode(workload)
    return document


log = logging.getLogger(__name__)


class WorkloadProgress:
    """A workload and how far it is."""

    def __init__(self, cluster: LocalCluster, workload: JobWorkload) -> None:
        self._cluster = cluster
        self._workload = workload
        self._started_s: float | None = None  # of the present round
        self._next = 0

    def start(self, workload: JobWorkload | None, now_s: float) -> None:
        """Begin (again) with the given workload, or with the one it has."""
        self._workload = workload or self._workload
        self._started_s, self._next = now_s, 0

    def submit_due(self, now_s: float) -> float:
        """Submit what is due and return when the next job is (infinity: none)."""
        while (due_s := self._due_s()) <= now_s:
            if self._next == len(self._workload.jobs):
                self._started_s, self._next = due_s, 0
                continue
            item = self._workload.jobs[self._next]
            self._next += 1
            request = JobRequest(
                user=item.user,
                n_nodes=item.n_nodes,
                limit_s=item.limit_s,
                argv=("sleep", f"{item.duration_s:.3f}"),
            )
            try:
                self._cluster.submit(request, now_s)
            except BatchSystemError as refusal:
                log.warning("job %d of the workload is refused: %s", self._next, refusal)
        return due_s

    def _due_s(self) -> float:
        if self._started_s is None:
            return math.inf
        items, repeat_s = self._workload.jobs, self._workload.repeat_s
        if self._next < len(items):
            return self._started_s + items[self._next].at_s
        if repeat_s is None or not items:
            return math.inf
        return self._started_s + repeat_s

    def view(self) -> dict[str, Any]:
        """Return the progress of the workload, for the history."""
        n_jobs = len(self._workload.jobs)
        return {"started_s": self._started_s, "n_submitted": self._next, "n_jobs": n_jobs}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """An ordinary job as it was submitted, and how long it ran."""

    job_id: str
    n_nodes: int
    limit_s: float
    submit_s: float
    duration_s: float
    withdrawn_s: float = math.inf  # cancelled before it started


def start_times_s(
    jobs: Iterable[PastJob], *, nodes: Sequence[str], cycle_s: float, cycle_at_s: float = 0.0
) -> dict[str, float]:
    """Return each job's start on its own cluster; full passes at ``cycle_at_s`` + n cycles.

    Jobs that never start are missing.
    """
    coming = sorted((j for j in jobs if j.n_nodes <= len(nodes)), key=lambda j: j.submit_s)
    queue: dict[str, PastJob] = {}
    running: dict[str, tuple[float, LocalAllocation]] = {}  # with the time of their end
    # Number of the next full pass, the one at ``cycle_at_s`` being 0.
    cycle = math.floor((coming[0].submit_s - cycle_at_s) / cycle_s) if coming else 0
    starts: dict[str, float] = {}
    while coming or queue:
        due_s = [end_s for end_s, _ in running.values()]
        due_s += [j.withdrawn_s for j in queue.values()]
        if queue:
            due_s.append(cycle_at_s + cycle * cycle_s)
        if coming:
            due_s.append(coming[0].submit_s)
        now_s = min(due_s)
        if not queue:  # the passes since the queue was last empty had nothing to do
            cycle = max(cycle, math.ceil((now_s - cycle_at_s) / cycle_s))
        for job_id, (end_s, _) in list(running.items()):
            if end_s <= now_s:
                del running[job_id]
        while coming and coming[0].submit_s <= now_s:
            job = coming.pop(0)
            queue[job.job_id] = job
        queue = {i: j for i, j in queue.items() if j.withdrawn_s > now_s}
        is_cycle = now_s >= cycle_at_s + cycle * cycle_s
        passes = [False]  # whether each is full
        if is_cycle:
            passes.append(True)
        for is_full in passes:
            waiting = [
                PendingJob(job_id=j.job_id, n_nodes=j.n_nodes, limit_s=j.limit_s)
                for j in queue.values()
            ]
            decided = run_pass(
                now_s=now_s,
                nodes=nodes,
                held=[allocation for _, allocation in running.values()],
                waiting=waiting,
                pilots=(),
                is_full=is_full,
            )
            for job_id, where in decided.starts.items():
                job = queue.pop(job_id)
                ends_by_s = now_s + job.limit_s
                allocation = LocalAllocation(
                    job_id=job_id, nodes=where, start_s=now_s, ends_by_s=ends_by_s
                )
                running[job_id] = (now_s + job.duration_s, allocation)
                starts[job_id] = now_s
        cycle += is_cycle
    return starts


def delays_s(
    history: Sequence[Mapping[str, Any]],
    *,
    n_nodes: int,
    cycle_s: float,
    cycle_at_s: float = 0.0,
) -> dict[str, float]:
    """Return how much later each job of ``LocalClient.history`` started than without pilots.

    ``cycle_at_s`` is the time of any full pass (a snapshot's ``cycle``). Real starts are some
    milliseconds late, so small values are insignificant and may be negative.
    """
    nodes = [f"n{i}" for i in range(1, n_nodes + 1)]
    jobs = []
    for record in history:
        start_s, end_s = record["start_s"], record["end_s"]
        ran_s, withdrawn_s = record["limit_s"], math.inf
        if start_s is not None and end_s is not None:
            ran_s = end_s - start_s
        elif end_s is not None:
            withdrawn_s = end_s
        fields = {name: record[name] for name in ("job_id", "n_nodes", "limit_s", "submit_s")}
        jobs.append(PastJob(**fields, duration_s=ran_s, withdrawn_s=withdrawn_s))
    ideal_s = start_times_s(jobs, nodes=nodes, cycle_s=cycle_s, cycle_at_s=cycle_at_s)
    return {
        record["job_id"]: record["start_s"] - ideal_s[record["job_id"]]
        for record in history
        if record["start_s"] is not None and record["job_id"] in ideal_s
    }
