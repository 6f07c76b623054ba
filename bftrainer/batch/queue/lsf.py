"""The queue of LSF: a blocked job holds back others only on the slots that LSF reserved for it.

Slurm plans every blocked job, and later ones may not delay it. LSF serves queues by priority and
each queue in order of submission, passes over a job that cannot start, and reserves slots only in
queues with SLOT_RESERVE; others may use those until the planned start (BACKFILL). Source: LSF 10.1,
"Reserve resources" and "Backfill scheduling"; measured on volclava 2.2. Pure.
"""

from __future__ import annotations

from bftrainer.batch.queue.backfill import BackfillPlan
from bftrainer.batch.queue.model import JobNeeds
from bftrainer.batch.queue.nodesets import NodeSet
from bftrainer.batch.queue.snapshot_model import PrintedQueue
from bftrainer.model.cluster import Job


class ReservedStarts(BackfillPlan):
    """``NextPlan``: the starts that LSF has planned, and no others."""

    def wait(self, job: Job, request: JobNeeds | None) -> None:
        """Plan the job where slots are reserved for it."""
        del request  # what LSF reserves is known, what it might reserve next is not
        super().wait(job, None)


class LsfQueue(PrintedQueue):
    """``QueueModel`` of LSF: order and requests as printed, plans as reserved."""

    def next_plan(self, usable: NodeSet) -> ReservedStarts:
        """Plan as LSF reserves."""
        return ReservedStarts(self._snapshot, self.sets, usable, self._now_s)
