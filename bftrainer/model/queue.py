"""Needs of pending jobs and ends of idle gaps: data between decisions and queue models. Pure."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from bftrainer.model.cluster import NodeLeft
from bftrainer.model.node_sets import NodeSet, NodeSets

# As ``GapEnd.sentence`` says it; a blackout is the site's wish, and not meant.
_LEFT = re.compile(
    r"(?:The batch system plans to use it|(?:Reservation|Maintenance) .* of it begins)"
    r" in (?P<left_s>\d+) s\b"
)


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """A number of nodes out of a set."""

    among: NodeSet
    count: int
    n_more: int = 0  # that it takes as well if they are free
    share: NodeLeft | None = None  # part needed of each node; others may use the rest
    gpu_type: str = ""  # that the GPUs of the share must have; "": any


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


def earliest(ends: Iterable[tuple[GapEnd, NodeSet]], sets: NodeSets) -> dict[str, GapEnd]:
    """Return the earliest end of each node; of equal ones the first."""
    end_of: dict[str, GapEnd] = {}
    nodes_with_end: NodeSet = 0
    for end, nodes in sorted(ends, key=_at_s):
        for node in sets.members(nodes & ~nodes_with_end):
            end_of[node.name] = end
        nodes_with_end |= nodes
    return end_of


def _at_s(end_and_nodes: tuple[GapEnd, NodeSet]) -> float:
    end, _ = end_and_nodes
    return end.at_s


def slot_begin_s(start_s: float, slot_s: float) -> float:
    """Return the begin of the slot of the scheduler's plan in which a planned job starts.

    The whole slot counts as taken: a job whose limit reaches into it waits (measured on Slurm
    22.05 with the default bf_resolution of 60 s: with a start planned at 22:04:53, jobs with limits
    until 22:03:50 started, until 22:04:05 did not).

    Args:
        start_s: as planned.
        slot_s: ``Snapshot.plan_resolution_s``; 0: the plan is exact.
    """
    if slot_s <= 0 or math.isinf(start_s):
        return start_s
    return math.floor(start_s / slot_s) * slot_s


def left_s_in(why: str) -> float | None:
    """Return how soon a planned job or reservation needs the node, by a ``GapEnd``'s sentence.

    None: the sentence is of something else.
    """
    match = _LEFT.match(why)
    if match is None:
        return None
    return float(match["left_s"])
