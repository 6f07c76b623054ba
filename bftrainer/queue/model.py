"""What ``decide`` asks of a queue, and in which terms it is told. Plain data.

All that schedulers differ in is behind ``QueueModel``: who may start, in which order, on which
nodes, and when somebody else is to have a node. ``printed`` is the one there is.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bftrainer.model.cluster import Job, NodeLeft
from bftrainer.queue.nodesets import NodeSet, NodeSets


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """So many of these nodes."""

    among: NodeSet
    count: int
    n_more: int = 0  # that it takes on top where they are free
    share: NodeLeft | None = None  # of each it takes that much, others may have the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeeds:
    """What a job asks for."""

    why_not: str = ""  # why it cannot start now, whatever is free; a sentence
    ways: tuple[tuple[NodeDemand, ...], ...] = ()  # one of them is enough
    limit_s: float | None = None  # the shortest time it may be run for; None: not known


class Then(enum.StrEnum):
    """What ends a gap."""

    JOB = "job"  # a job planned on this node
    RESERVATION = "reservation"  # set aside for somebody
    MAINTENANCE = "maintenance"  # set aside for nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class GapEnd:
    """When a gap is over, and what comes then."""

    at_s: float
    last_end_s: float  # when a job that starts now has to be over by its limit, to be let start
    then: Then
    by: str = ""  # job id or name of the reservation

    def is_before(self, other: GapEnd | None) -> bool:
        """Whether it comes first."""
        return other is None or self.at_s < other.at_s

    def sentence(self, now_s: float) -> str:
        """Say why the node is not used (any longer)."""
        left_s = max(0.0, self.at_s - now_s)
        if self.then is Then.JOB:
            return f"The batch system plans to use it in {left_s:.0f} s (job {self.by})."
        return f"{self.then.value.capitalize()} {self.by} of it begins in {left_s:.0f} s."


class NextPlan(Protocol):
    """What the scheduler will plan when it comes to its queue next, job by job in its order."""

    @property
    def ends(self) -> Mapping[str, GapEnd]:
        """Of each node on which somebody is planned: the first."""

    @property
    def is_full(self) -> bool:
        """Whether no more jobs are planned by what they ask for."""

    def kept_off(self, limit_s: float | None, *, is_in_reservation: bool) -> NodeSet:
        """Return the nodes on which a job that starts now would delay one that is planned.

        Args:
            limit_s: its time limit; None: not known, and it delays nobody.
            is_in_reservation: it has one of its own.
        """

    def start(self, limit_s: float | None, nodes: NodeSet) -> None:
        """Let a job start there now."""

    def wait(self, job: Job, request: JobNeeds | None) -> None:
        """Plan a job that cannot start now; ``request`` None: it lacks more than nodes."""


class QueueModel(Protocol):
    """The pending ordinary jobs of one look, as their scheduler takes them. Pure."""

    @property
    def sets(self) -> NodeSets:
        """The nodes of the look, in which requests are stated."""

    @property
    def jobs(self) -> Sequence[Job]:
        """The jobs, in the order in which the scheduler takes them."""

    @property
    def gap_ends(self) -> Mapping[str, GapEnd]:
        """Of each node that somebody else is to have: from when."""

    def why_not(self, job: Job) -> str:
        """Say at a glance why a job cannot start, whatever is free; "": nothing is known."""

    def request(self, job: Job) -> JobNeeds:
        """Say what a job asks for, other jobs apart."""

    def next_plan(self, usable: NodeSet) -> NextPlan:
        """Return the scheduler's next plan, without anybody yet; ``usable``: for jobs, now."""
