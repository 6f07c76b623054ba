"""When a job that could start gets nodes of ours: now, not yet, or not after another.

Takes what ``giveback`` knows; it releases nothing for whom is named here, and asks again at
every decision. Three reasons: the job was tried before anybody heard of it, only backfill
can start it and does not come soon, or the look is older than the cycle that passed. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.decide.matching import Matching
from bftrainer.decide.nodesets import NodeSet
from bftrainer.decide.requests import Request, Requests
from bftrainer.decide.types import PilotView, Settings
from bftrainer.decide.waiting import LAST_CALL_S, next_cycle_s
from bftrainer.poll.snapshot import Job, JobState, Snapshot

LATE_S = 1.0  # a cycle may begin so much later than it is expected


def served(waiting: Sequence[Job]) -> set[str]:
    """Return announced jobs that have had what they could get while they were submitted.

    Nodes of ours on which it did not start at once were taken from us then: the scheduler
    chose, and others given back now would be lost as well. Who was not first in line was
    not tried; the next look shows whether it waits.
    """
    return {
        job.job_id
        for job in waiting
        if job.was_tried and not any(_may_precede(other, job) for other in waiting)
    }


def had_first(queue: Sequence[Job], requests: Requests, idle: NodeSet) -> list[Job]:
    """Put announced jobs first that had room on idle nodes while they were submitted.

    Where nobody is of higher priority, and by default all are equal, the scheduler gave it to
    them there and then, past the whole queue and past every plan. Else they wait, and a node
    is given back in vain.
    """
    left = Matching(idle)
    first = [job for job in queue if job.was_tried and _has_room(requests.of(job), left)]
    ids = {job.job_id for job in first}
    return [*first, *(job for job in queue if job.job_id not in ids)]


def _has_room(request: Request, left: Matching) -> bool:
    """Whether it has; then it takes it."""
    return not request.cannot and any(left.try_add(way) for way in request.ways)


def _may_precede(other: Job, job: Job) -> bool:
    """Whether they are in one queue; "" is the default partition, whichever that is."""
    own, its = set(job.partition.split(",")), set(other.partition.split(","))
    return other is not job and (bool(own & its) or "" in own | its)


def due_s(snapshot: Snapshot, settings: Settings, now_s: float) -> float:
    """Return when what only backfill can start is to have its nodes.

    At once where we do not know when backfill comes, and while the daemon backs off.
    """
    lead_s, began_s = settings.backfill_lead_s, snapshot.cycle and snapshot.cycle.began_s
    next_s = next_cycle_s(snapshot, settings.cycle_s, now_s)
    if lead_s is None or not began_s or next_s is None or settings.hold_off_cycles > 1.0:
        return now_s
    expected_s = next_s - settings.cycle_s  # the one before; nobody may have seen it begin
    if expected_s > began_s + LATE_S and now_s < expected_s + LATE_S:
        return now_s
    return next_s - lead_s


def is_overtaken(snapshot: Snapshot, pilots: Sequence[PilotView], rest_s: float) -> bool:
    """Whether a cycle has passed that the look does not show, and the next is not near.

    A pilot that waits in the look and has come meanwhile was started by it, and so were jobs
    before it in the queue: given back now, nodes would be nobody's. The next look is called.
    """
    if rest_s <= LAST_CALL_S:  # or nobody knows
        return False
    held = {p.pilot_id for p in pilots if p.is_held}
    return any(j.pilot_id in held and j.state is JobState.PENDING for j in snapshot.jobs or ())
