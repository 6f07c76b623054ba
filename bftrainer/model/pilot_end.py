"""How a pilot ended that nobody of us asked to leave, by what the batch system says of its job."""

from __future__ import annotations

import enum


class EndedBy(enum.StrEnum):
    """Who or what ended a pilot, by what the batch system says."""

    PREEMPTED = "preempted"  # the batch system, for another job
    CANCELLED = "cancelled"  # its user or an administrator; or we, by a signal
    TIME_LIMIT = "time-limit"
    NODE = "node"  # its node failed
    ITSELF = "itself"  # its agent exited
    UNKNOWN = "unknown"
