"""Records of the harm monitor, and the service-level objective over them.

``ledger`` makes them, the journal keeps them (entries of kind ``harm``); ``backoff`` and ``report``
use nothing else. Times are seconds since the epoch on the daemon's clock.

The default limit (``harm_slo_s``) is one second: an agent exits 0.05 s after it was told, Slurm
starts batch jobs at ticks of one to three seconds, and its times are whole seconds, so shorter
delays go unnoticed. The default share (``harm_slo_share``) is 0.95: one node in twenty may be slow
for reasons of its own.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bftrainer.model.cluster import EndedBy
from bftrainer.model.reports import DelayBucket

KIND = "harm"  # of the journal's entries


class How(enum.StrEnum):
    """The way in which the node was freed."""

    GIVEN_BACK = "given-back"  # we did, before the batch system had to
    PREEMPTED = "preempted"  # the batch system ended our pilot


class Why(enum.StrEnum):
    """The reason for which a release of a node was in vain."""

    STARTED_ELSEWHERE = "started-elsewhere"
    DID_NOT_START = "did-not-start"  # and the node is no longer held off
    LEFT_THE_QUEUE = "left-the-queue"  # cancelled, or too short for a poll to show it


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """A node that an ordinary job got from us."""

    job_id: str
    n_nodes: int  # of the job
    node: str
    pilot_id: str
    how: How
    asked_s: float | None  # our release or the agent's SIGTERM; None: unknown
    freed_s: float
    precision_s: float  # possible error of freed_s
    start_s: float | None = None  # of the job, whole seconds on Slurm
    asked_for: str = ""  # the job the node was released for, if any
    # Parts of the delay; None: the agent did not report.
    decision_s: float = 0.0
    cancel_s: float | None = None  # until the agent was told
    agent_s: float | None = None  # until the agent had exited
    epilog_s: float | None = None  # until the batch system had the node

    @property
    def delay_s(self) -> float | None:
        """The time the job waited for us: the figure of the SLO."""
        return None if self.asked_s is None else max(0.0, self.freed_s - self.asked_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vain:
    """A node released for a job that did not take it, nor did another."""

    job_id: str
    node: str
    pilot_id: str
    asked_s: float
    settled_s: float
    why: Why
    family: str = ""  # of the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A pilot that others ended, and on whose node no ordinary job was seen that it was for."""

    node: str
    pilot_id: str
    ended_s: float
    settled_s: float
    by: EndedBy = EndedBy.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmRecords:
    """Results of one snapshot: the payload of one journal entry."""

    hand_overs: tuple[HandOver, ...] = ()
    vain: tuple[Vain, ...] = ()
    taken: tuple[Taken, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is to be journalled."""
        return not (self.hand_overs or self.vain or self.taken)


BUCKETS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # upper bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The promise, and when breaking it is forgotten."""

    limit_s: float = 1.0
    share: float = 0.95
    quiet_s: float = 1800.0


def delays_s(hand_overs: Iterable[HandOver]) -> list[float]:
    """Return the measured delays, in order."""
    return [h.delay_s for h in hand_overs if h.delay_s is not None]


def histogram(delays: Iterable[float]) -> tuple[DelayBucket, ...]:
    """Count delays in fixed buckets."""
    counts = [0] * (len(BUCKETS_S) + 1)
    for delay in delays:
        counts[bisect_left(BUCKETS_S, delay)] += 1
    return tuple(
        DelayBucket(at_most_s=bound, count=count)
        for bound, count in zip((*BUCKETS_S, None), counts, strict=True)
    )


def share_within(delays: Sequence[float], limit_s: float) -> float | None:
    """Return the share of delays within the limit; None if there are none."""
    return sum(d <= limit_s for d in delays) / len(delays) if delays else None


def quantile(delays: Sequence[float], q: float) -> float | None:
    """Return the smallest delay that a share ``q`` of the delays does not exceed."""
    if not delays:
        return None
    ordered = sorted(delays)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def worst(hand_overs: Iterable[HandOver], count: int) -> tuple[HandOver, ...]:
    """Return the slowest, slowest first; unmeasured ones last."""
    return tuple(
        sorted(hand_overs, key=lambda h: -1.0 if h.delay_s is None else h.delay_s, reverse=True)[
            :count
        ]
    )


def slow_part(done: HandOver) -> str:
    """Say in one sentence which part took most of the time."""
    if done.delay_s is None:
        return "The batch system ended the pilot and its agent did not report."
    if done.cancel_s is None or done.agent_s is None or done.epilog_s is None:
        return f"The agent did not report: the node was free within {done.delay_s:.2f} s."
    order = "the batch system's signal" if done.how is How.PREEMPTED else "our order"
    parts = {
        f"our decision took {done.decision_s:.2f} s": done.decision_s,
        f"the agent received {order} after {done.cancel_s:.2f} s": done.cancel_s,
        f"the agent took {done.agent_s:.2f} s to leave": done.agent_s,
        f"the batch system's epilog took {done.epilog_s:.2f} s": done.epilog_s,
    }
    slowest = max(parts, key=parts.__getitem__)
    return f"{slowest[0].upper()}{slowest[1:]}."
