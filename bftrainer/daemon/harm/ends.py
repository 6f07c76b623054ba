"""Pilots on their way out, as far as known, and which jobs may have waited for what they leave.

Plain data; used by ``ledger`` and ``hosts``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bftrainer.batch.announcer import is_same_job
from bftrainer.daemon.harm.lost_cycle import WHOLE_S
from bftrainer.model.cluster import Job
from bftrainer.model.decision import PilotView
from bftrainer.model.parts import NodePart

LIMIT_MARGIN_S: Final = 10.0  # an end this close to the pilot's time limit has no other cause


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A pilot on its way out, as far as known."""

    pilot_id: str
    node: str  # or the name of the part of a node
    part: NodePart | None = None  # less than a node that it had; None: the whole node
    asked_s: float | None = None  # our release
    decision_s: float = 0.0
    job: Job | None = None  # the ordinary job it was released for
    told_s: float | None = None  # the agent was told
    left_s: float | None = None  # the agent reported its exit
    is_preempted: bool = False  # the batch system ended it: first, or at the same time
    ran_s: float | None = None  # begin of the last look that showed it running
    seen_s: float | None = None  # begin of the last poll that showed its job
    gone_s: float | None = None  # end of the first poll that did not

    @property
    def began_s(self) -> float | None:
        """Time of the first request for the node."""
        if not self.is_preempted:
            return self.asked_s
        if self.told_s is None:
            return self.asked_s
        if self.asked_s is None:
            return self.told_s
        return min(self.told_s, self.asked_s)

    @property
    def job_id(self) -> str:
        """The job it was released for; "": none."""
        if self.job is None:
            return ""
        return self.job.job_id

    @property
    def gpus(self) -> int:
        """GPUs of the part of a node that it had; 0: it had the whole node."""
        if self.part is None:
            return 0
        return self.part.gpus

    @property
    def gpu_type(self) -> str:
        """The type of these GPUs, "gpu:a100"; "": it had the whole node."""
        if self.part is None:
            return ""
        return self.part.gpu_type

    def is_for(self, job: Job) -> bool:
        """Return whether the node was released for this job, announced or in the queue."""
        if self.job is None:
            return False
        if self.job.is_announced:
            return is_same_job(self.job, job)
        return self.job.job_id == job.job_id

    def may_be_for(self, job: Job) -> bool:
        """Return whether a job on the node had waited for it, or the node was released for it.

        A job submitted after the node was free did not wait for us, and one that had started
        before the end began got nothing of it.
        """
        began_s = self.began_s
        if began_s is None and self.part is not None:  # other jobs may have run beside it
            began_s = self.ran_s
        is_later = job.start_s is None or began_s is None or job.start_s >= began_s - WHOLE_S
        has_waited = self.gone_s is None or (job.submit_s or 0.0) <= self.gone_s
        return is_later and (has_waited or self.is_for(job))


def lent_part(view: PilotView) -> NodePart | None:
    """Return what a pilot has of its node; None: the whole node."""
    part = view.part
    if part is None or part.name == part.node:
        return None
    return part


def limit_struck(view: PilotView, at_s: float) -> bool:
    """Return whether a pilot's time limit explains its end at that time."""
    return view.end_s is not None and at_s >= view.end_s - LIMIT_MARGIN_S
