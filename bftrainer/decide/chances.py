"""Who could have started and did not: such a job gets no further nodes of ours.

``giveback`` asks of every job for which there would be room. A job whose nodes were there
for a whole cycle of the scheduler, and nothing else changed, waits for something that we do
not know of; what was given back for it was given back in vain. Pure but for its own memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from bftrainer.decide.nodesets import NodeSet
from bftrainer.decide.requests import ASKS
from bftrainer.decide.types import GaveBack, Settings
from bftrainer.poll.snapshot import Job, JobState, Snapshot


@dataclass(frozen=True, slots=True)
class Chances:
    """What is remembered of the jobs that wait, brought up to date by asking."""

    remembered: dict[str, GaveBack]  # job id -> since when it could have started, and in which
    situation: str
    snapshot: Snapshot
    settings: Settings
    now_s: float

    @classmethod
    def of(
        cls,
        known: Mapping[str, GaveBack],
        waiting: Sequence[Job],
        snapshot: Snapshot,
        usable: AbstractSet[str],
        settings: Settings,
        now_s: float,
    ) -> Chances:
        """Forget who does not wait any more.

        Args:
            known: what was remembered at the last decision.
            waiting: pending ordinary jobs that wait for nodes, in the queue's order.
            snapshot: complete.
            usable: names of nodes that are free, coming back or ours.
            settings: policy.
            now_s: batch system's clock.
        """
        remembered = {job.job_id: known[job.job_id] for job in waiting if job.job_id in known}
        return cls(remembered, _situation(waiting, snapshot, usable), snapshot, settings, now_s)

    def had(self, job: Job, kept_off: NodeSet) -> bool:
        """Whether the scheduler passed it over; if nobody asked before, its chance begins now.

        ``kept_off``: nodes planned for others. A job that seemed to start on free nodes may
        need ours once these are planned.
        """
        known, its_own = self.remembered.get(job.job_id), f"{self.situation}-{kept_off:x}"
        if known is None or known.situation != its_own:
            self.remembered[job.job_id] = GaveBack(at_s=self.now_s, situation=its_own)
            return False
        return cycle_passed(known.at_s, self.snapshot, self.settings)

    def put_off(self, job_ids: Iterable[str], until_s: float) -> None:
        """Let the chance of these jobs begin then."""
        for job_id in job_ids:
            self.remembered[job_id] = replace(self.remembered[job_id], at_s=until_s)


def cycle_passed(since_s: float, snapshot: Snapshot, settings: Settings) -> bool:
    """Return whether a scheduler cycle began and ended after ``since_s``."""
    cycle = snapshot.cycle
    if cycle is None or cycle.ended_s is None:
        return snapshot.taken_at_s > since_s + 2.0 * settings.cycle_s
    if cycle.began_s is not None:
        return cycle.began_s >= since_s
    return cycle.ended_s >= since_s + 1.0  # a pass takes less than that, its clock rounds


def _situation(pending: Sequence[Job], snapshot: Snapshot, usable: AbstractSet[str]) -> str:
    """Digest of job queue and usable nodes: when it changes, everything is open again."""
    running = sorted(
        j.job_id for j in snapshot.jobs or () if j.is_ordinary and j.state is not JobState.PENDING
    )
    # In order of priority; its value grows with age and says nothing new, nor do the
    # reason and the plan, which every pass of the scheduler writes anew.
    # What the tasks of an array ask for is written once: a list of nodes may be in it.
    asks: dict[object, int] = {}
    queue = [(job.job_id, asks.setdefault(ASKS(job), len(asks))) for job in pending]
    text = repr((queue, list(asks), running, sorted(usable)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
