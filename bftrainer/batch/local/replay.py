"""Replays the ordinary jobs without pilots, to compute how much pilots delayed them. Pure.

The demo calls ``delays_s`` with the server's history.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftrainer.batch.local.scheduler import Held, Waiting, run_pass


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
    """When each job starts on a cluster of its own; full passes are at ``cycle_at_s`` + n cycles.

    Jobs that never start are missing.
    """
    coming = sorted(jobs, key=lambda j: j.submit_s)
    queue: dict[str, PastJob] = {}
    running: dict[str, tuple[float, Held]] = {}  # with the time of their end
    starts: dict[str, float] = {}
    # Number of the next full pass, the one at ``cycle_at_s`` being 0.
    cycle = math.floor((coming[0].submit_s - cycle_at_s) / cycle_s) if coming else 0
    while coming or queue:
        due_s = [cycle_at_s + cycle * cycle_s] if queue else []
        due_s += [coming[0].submit_s] if coming else []
        due_s += [end_s for end_s, _ in running.values()]
        due_s += [j.withdrawn_s for j in queue.values()]
        now_s = min(due_s)
        if not queue:  # the passes since the queue was last empty had nothing to do
            cycle = max(cycle, math.ceil((now_s - cycle_at_s) / cycle_s))
        running = {i: r for i, r in running.items() if r[0] > now_s}
        while coming and coming[0].submit_s <= now_s:
            job = coming.pop(0)
            queue[job.job_id] = job
        queue = {i: j for i, j in queue.items() if j.withdrawn_s > now_s}
        queue = {i: j for i, j in queue.items() if j.n_nodes <= len(nodes)}
        is_cycle = now_s >= cycle_at_s + cycle * cycle_s
        for is_full in (False, True) if is_cycle else (False,):
            for job_id, held in _starts(now_s, nodes, running, queue, is_full=is_full):
                running[job_id] = (now_s + queue.pop(job_id).duration_s, held)
                starts[job_id] = now_s
        cycle += is_cycle
    return starts


def _starts(
    now_s: float,
    nodes: Sequence[str],
    running: Mapping[str, tuple[float, Held]],
    queue: Mapping[str, PastJob],
    *,
    is_full: bool,
) -> list[tuple[str, Held]]:
    decided = run_pass(
        now_s=now_s,
        nodes=nodes,
        held=[held for _, held in running.values()],
        waiting=[
            Waiting(job_id=j.job_id, n_nodes=j.n_nodes, limit_s=j.limit_s) for j in queue.values()
        ],
        pilots=(),
        is_full=is_full,
    )
    return [
        (
            job_id,
            Held(
                job_id=job_id,
                nodes=where,
                start_s=now_s,
                ends_by_s=now_s + queue[job_id].limit_s,
            ),
        )
        for job_id, where in decided.starts.items()
    ]


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
    jobs = [_past(record) for record in history]
    nodes = [f"n{i}" for i in range(1, n_nodes + 1)]
    ideal_s = start_times_s(jobs, nodes=nodes, cycle_s=cycle_s, cycle_at_s=cycle_at_s)
    return {
        record["job_id"]: record["start_s"] - ideal_s[record["job_id"]]
        for record in history
        if record["start_s"] is not None and record["job_id"] in ideal_s
    }


def _past(record: Mapping[str, Any]) -> PastJob:
    start_s, end_s = record["start_s"], record["end_s"]
    is_withdrawn = start_s is None and end_s is not None
    return PastJob(
        job_id=record["job_id"],
        n_nodes=record["n_nodes"],
        limit_s=record["limit_s"],
        submit_s=record["submit_s"],
        duration_s=record["limit_s"] if None in (start_s, end_s) else end_s - start_s,
        withdrawn_s=end_s if is_withdrawn else math.inf,
    )
