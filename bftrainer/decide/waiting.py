"""Who waits: ordinary jobs for nodes, and what of ours for a cycle of the scheduler.

``awaited_cycle_s`` is called by the daemon around each look, because asking for the cycle
is a request to the controller of its own. A snapshot that was taken without asking has the
cycle that was known last: an old one can only say "not passed yet", never "passed", so
that nothing is taken too early. ``starts_by_s`` is called by ``pool`` and ``decision``: where
ordinary jobs wait for nodes a pilot waits, too, and what its limit must fit into is what is
left of the gap then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from bftrainer.decide.requests import base_id, jobs_in_queue, why_it_waits
from bftrainer.decide.types import Memory, PilotView
from bftrainer.poll.snapshot import Job, JobState, Snapshot

LAST_CALL_S = 2.0  # before a cycle: pilots asked for by then are in the queue when it begins


def pending_jobs(snapshot: Snapshot) -> list[Job]:
    """Return the ordinary jobs that have not started, as the snapshot has them."""
    return [j for j in snapshot.jobs or () if j.is_ordinary and j.state is JobState.PENDING]


def in_order(jobs: list[Job], snapshot: Snapshot) -> list[Job]:
    """Sort jobs as the scheduler takes them: tier, priority, age."""
    tiers = {partition.name: partition.tier for partition in snapshot.partitions}

    def tier(job: Job) -> int:
        if len(tiers) == 0:
            return 0
        return max(tiers.get(name, 0) for name in job.partition.split(","))

    return sorted(jobs, key=lambda j: (-tier(j), -j.priority, j.submit_s or 0.0, _number(j)))


def _number(job: Job) -> float:
    """Many are submitted within a second: of those the lower number comes first."""
    number = base_id(job.job_id)
    return float(number) if number.isdecimal() else math.inf


def waits_for_nodes(snapshot: Snapshot) -> bool:
    """Whether there is a job that might start if it had nodes."""
    pending = pending_jobs(snapshot)
    if not pending:
        return False
    in_queue = jobs_in_queue(snapshot)
    return any(not why_it_waits(job, snapshot.taken_at_s, in_queue) for job in pending)


def starts_by_s(snapshot: Snapshot, cycle_s: float, now_s: float) -> float:
    """Return when a pilot that is asked for now starts, if it does not have to wait twice.

    With nobody waiting for nodes that is at once. Else the scheduler comes to it in its next
    cycle: a limit that fits what is left of a gap now would not fit what is left then, and
    the pilot would not start at all (``gaps``).

    Args:
        snapshot: complete.
        cycle_s: time between two passes of the scheduler.
        now_s: batch system's clock.
    """
    if not waits_for_nodes(snapshot):
        return now_s
    latest_s = now_s + cycle_s
    return min(next_cycle_s(snapshot, cycle_s, now_s) or latest_s, latest_s)


def next_cycle_s(snapshot: Snapshot, cycle_s: float, now_s: float) -> float | None:
    """Return when the scheduler begins to pass over the queue next, None where nobody knows."""
    began_s = snapshot.cycle.began_s if snapshot.cycle is not None else None
    if began_s is None or cycle_s <= 0:
        return None
    # The one known last may be some cycles old: nobody asks while nothing waits for one.
    return began_s + max(1, math.ceil((now_s - began_s) / cycle_s)) * cycle_s


def awaited_cycle_s(
    memory: Memory,
    pilots: Iterable[PilotView],
    snapshot: Snapshot | None,
    cycle_s: float,
    now_s: float,
) -> float | None:
    """Return in how many seconds the cycle begins that a give-back or a claim waits for.

    ``inf`` where that is not known, None where nothing waits for one.
    """
    if not _waits_for_cycle(memory, pilots, snapshot):
        return None
    at_s = None if snapshot is None else next_cycle_s(snapshot, cycle_s, now_s)
    return math.inf if at_s is None else at_s - now_s


def _waits_for_cycle(
    memory: Memory, pilots: Iterable[PilotView], snapshot: Snapshot | None
) -> bool:
    if memory.held_off:  # dropped as soon as it has passed
        return True
    since_s = [known.at_s for known in memory.gave_back.values()]
    since_s += [p.requested_s for p in pilots if not (p.is_held or p.is_leaving)]
    if not since_s:
        return False
    cycle = snapshot.cycle if snapshot is not None else None
    return cycle is None or cycle.began_s is None or cycle.began_s < max(since_s)


def slot_begin_s(start_s: float, slot_s: float) -> float:
    """Return the begin of the slot of backfill's plan in which a planned job starts.

    The whole slot counts as taken: a job whose limit reaches into it waits (measured on Slurm
    22.05 with the default bf_resolution of 60 s, and a plan for 22:04:53: limits until
    22:03:50 started, until 22:04:05 did not).

    Args:
        start_s: as planned.
        slot_s: ``Snapshot.plan_resolution_s``; 0: the plan is exact.
    """
    if slot_s <= 0 or math.isinf(start_s):
        return start_s
    return math.floor(start_s / slot_s) * slot_s
