"""Data between ``decide`` and the queue models (``models``)."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from bftrainer.model.cluster import NodeLeft
from bftrainer.model.node_sets import NodeSet


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


# As ``GapEnd.sentence`` says it; a blackout is the site's wish, and not meant.
_LEFT = re.compile(
    r"(?:The batch system plans to use it|(?:Reservation|Maintenance) .* of it begins)"
    r" in (?P<left_s>\d+) s\b"
)


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


def left_s_in(why: str) -> float | None:
    """Return how soon a planned job or reservation needs the node, by a ``GapEnd``'s sentence.

    None: the sentence is of something else.
    """
    match = _LEFT.match(why)
    return None if match is None else float(match["left_s"])
