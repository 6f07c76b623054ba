"""Records of the harm monitor: hand-overs, nodes released in vain, nodes taken.

``ledger`` makes them, the journal keeps them (entries of kind ``harm``); ``slo``, ``backoff`` and
``report`` use nothing else. Times are seconds since the epoch on the daemon's clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from bftrainer.model.cluster import EndedBy

KIND = "harm"  # of the journal's entries


class How(enum.StrEnum):
    """How the node was freed."""

    GIVEN_BACK = "given-back"  # we did, before the batch system had to
    PREEMPTED = "preempted"  # the batch system ended our pilot


class Why(enum.StrEnum):
    """Why a node was given back in vain."""

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
    """What one snapshot settled: the payload of one journal entry."""

    hand_overs: tuple[HandOver, ...] = ()
    vain: tuple[Vain, ...] = ()
    taken: tuple[Taken, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to journal."""
        return not (self.hand_overs or self.vain or self.taken)
