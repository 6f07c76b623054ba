"""The interface between ``decide`` and a queue. Plain data.

``QueueModel`` hides the differences between schedulers: which jobs may start, in which order, on
which nodes, and when a node is planned for another use. Implementations: ``models``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bftrainer.batch.queue.nodesets import NodeSet, NodeSets
from bftrainer.model.cluster import Job, NodeLeft


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """A number of nodes out of a set."""

    among: NodeSet
    count: int
    n_more: int = 0  # that it takes as well if they are free
    share: NodeLeft | None = None  # part needed of each node; others may use the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeeds:
    """The requests of a job."""

    why_not: str = ""  # why it cannot start whatever is free, one sentence
    ways: tuple[tuple[NodeDemand, ...], ...] = ()  # alternatives
    n_preferred: int = 0  # of them, the first: tried before the others, whatever that takes
    limit_s: float | None = None  # the shortest run it accepts; None: not known


class Then(enum.StrEnum):
    """The cause of a gap's end."""

    JOB = "job"  # a job planned on this node
    RESERVATION = "reservation"  # for the users it was made for
    MAINTENANCE = "maintenance"  # for no job
    BLACKOUT = "blackout"  # of the policy, which lends no nodes then


@dataclass(frozen=True, slots=True, kw_only=True)
class GapEnd:
    """The end of an idle gap, and its cause."""

    at_s: float
    last_end_s: float  # a job that starts now must end before it by its limit
    then: Then
    by: str = ""  # job id or reservation name

    def is_before(self, other: GapEnd | None) -> bool:
        """Return whether it comes first."""
        return other is None or self.at_s < other.at_s

    def sentence(self, now_s: float) -> str:
        """Say why the node is not used (any longer)."""
        left_s = max(0.0, self.at_s - now_s)
        if self.then is Then.JOB:
            return f"The batch system plans to use it in {left_s:.0f} s (job {self.by})."
        if self.then is Then.BLACKOUT:
            begins = f"begins in {left_s:.0f} s" if left_s else "has begun"
            return f"The policy lends no nodes in the blackout {self.by}, which {begins}."
        return f"{self.then.value.capitalize()} {self.by} of it begins in {left_s:.0f} s."


class NextPlan(Protocol):
    """The scheduler's next plan, built job by job in queue order."""

    @property
    def ends(self) -> Mapping[str, GapEnd]:
        """The first planned use of each node that has one."""

    @property
    def is_full(self) -> bool:
        """Return whether further jobs are no longer planned by their requests."""

    def kept_off(self, limit_s: float | None, *, is_in_reservation: bool) -> NodeSet:
        """Return the nodes on which a job that starts now would delay a planned one.

        Args:
            limit_s: its time limit; None: unknown, taken to delay no job.
            is_in_reservation: it has a reservation of its own.
        """

    def start(self, limit_s: float | None, nodes: NodeSet) -> None:
        """Record that a job starts there now."""

    def wait(self, job: Job, request: JobNeeds | None) -> None:
        """Plan a job that cannot start now; ``request`` None: it waits for more than nodes."""


class QueueModel(Protocol):
    """The pending ordinary jobs of one snapshot, as their scheduler sees them. Pure."""

    @property
    def sets(self) -> NodeSets:
        """The nodes of the snapshot, as used in requests."""

    @property
    def jobs(self) -> Sequence[Job]:
        """The jobs in scheduling order."""

    @property
    def gap_ends(self) -> Mapping[str, GapEnd]:
        """The end of the idle gap of each node that has one."""

    def why_not(self, job: Job) -> str:
        """Quick check: say why a job cannot start whatever is free; "": no reason known."""

    def request(self, job: Job) -> JobNeeds:
        """Return what a job requests, regardless of other jobs."""

    def next_plan(self, usable: NodeSet) -> NextPlan:
        """Return the scheduler's next plan, still empty; ``usable``: nodes jobs may have now."""
