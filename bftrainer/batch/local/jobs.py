"""Jobs of the local batch system: their requests and states.

``requests`` creates them from messages, ``cluster`` manages them, ``views`` shows them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bftrainer.batch.local.scheduler import Held


class Phase(enum.StrEnum):
    """Life of a job; it only moves forward."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"  # signalled, or its leaders have ended; nodes not free yet
    ENDED = "ended"


class EndReason(enum.StrEnum):
    """Why a job ended, in the batch system's own word."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"  # by itself, with another status than 0
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A submission: an ordinary job, or a pilot (``pilot_id`` set)."""

    user: str
    n_nodes: int
    limit_s: float
    argv: tuple[str, ...]
    pilot_id: str | None = None
    node: str | None = None  # pilots name theirs
    log_path: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class LocalJob:
    """A job and its present state; only ``cluster`` changes it."""

    job_id: str
    request: JobRequest
    submit_s: float
    phase: Phase = Phase.PENDING
    nodes: tuple[str, ...] = ()
    claim: tuple[str, ...] = ()  # assigned nodes that pilots still have to leave
    start_s: float | None = None
    end_s: float | None = None
    end_reason: EndReason | None = None
    kill_at_s: float | None = None  # when SIGTERM is followed by SIGKILL

    @property
    def is_pilot(self) -> bool:
        """Whether it is one of ours, of the lowest tier."""
        return self.request.pilot_id is not None

    @property
    def is_on_nodes(self) -> bool:
        """Whether it occupies nodes."""
        return self.phase in (Phase.RUNNING, Phase.ENDING)

    @property
    def limit_at_s(self) -> float:
        """When its time is up; only for jobs that started."""
        return (self.start_s or 0.0) + self.request.limit_s

    def as_held(self) -> Held:
        """The job as the scheduler sees it while it is on nodes."""
        return Held(
            job_id=self.job_id,
            nodes=self.nodes,
            start_s=self.start_s or 0.0,
            ends_by_s=self.limit_at_s,
            is_pilot=self.is_pilot,
            is_ending=self.phase is Phase.ENDING,
        )
