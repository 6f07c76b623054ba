"""Plain data of ``bftrainer report harm`` and of the document ``/v1/harm``.

``report`` makes it, the API transfers it, the command line prints it. Imports nothing that would
slow down a verb's start.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayBucket:
    """A bar of the histogram: delays up to ``at_most_s`` and above the previous bar."""

    at_most_s: float | None  # None: all longer delays
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstCase:
    """One of the slowest hand-overs."""

    job_id: str
    n_nodes: int
    node: str
    pilot_id: str
    how: str
    asked_s: float | None
    delay_s: float | None
    precision_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VainCount:
    """Nodes released in vain, for one reason."""

    why: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenCount:
    """Pilots that others ended without a job seen on their node, of one kind."""

    by: str
    pilots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmReport:
    """The effect on ordinary jobs."""

    since_s: float
    until_s: float
    limit_s: float
    share_promised: float
    hand_overs: int  # nodes
    jobs: int  # that got them
    measured: int
    share_within: float | None
    is_kept: bool  # the promise
    median_s: float | None
    p95_s: float | None
    max_s: float | None
    histogram: tuple[DelayBucket, ...]
    given_back: int  # nodes that ordinary jobs got because we released them
    preempted: int  # nodes they got because the batch system ended our pilot
    preempted_jobs: int  # jobs that had to preempt
    share_preempted: float | None  # of the jobs that got nodes
    preempted_jobs_per_hour: float | None
    taken: int  # pilots that others ended without a job seen on the node
    in_vain: int
    share_in_vain: float | None  # of the nodes released for a job
    in_vain_per_hour: float | None
    vain: tuple[VainCount, ...]
    worst: tuple[WorstCase, ...]
    back_off_level: int
    back_off: str  # one sentence, "" at level 0
    taken_by: tuple[TakenCount, ...] = ()
