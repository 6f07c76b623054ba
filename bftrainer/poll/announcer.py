"""What a batch system says by itself, between two looks.

An adapter that has such a source offers an ``Announcer``; the daemon waits on its file
descriptor and acts on what comes at once. It is a promise of nothing: a lost
announcement costs the time until the next look.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from bftrainer.poll.snapshot import Job, JobState, NodeState, Snapshot

# A job is announced before it is in the queue; a look that begins sooner may miss it.
UNSEEN_S = 1.0
STAND_IN = "announced-"  # what the ids of such jobs start with


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A job was submitted, was changed, or has ended."""

    at_s: float  # whole seconds
    partition: str  # "": the default one
    job: Job | None = None  # submitted: what is known of it, its id is a stand-in
    nodes: tuple[str, ...] = ()  # ended: those it had


class Announcer(Protocol):
    """A source of announcements."""

    def fileno(self) -> int:
        """Becomes readable when there is something."""

    def read(self) -> tuple[Announcement, ...]:
        """Return what has come since the last call; never blocks."""

    def close(self) -> None:
        """Stop listening: nothing more is written for us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """A job that was announced."""

    at_s: float
    job: Job
    shown_before: frozenset[str]  # jobs of an earlier look: none of them is this one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """A job whose end was announced."""

    at_s: float
    said_s: float  # whole seconds of the batch system's clock
    nodes: frozenset[str]


class Announced:
    """Jobs that were announced, and ends of jobs, that no look has shown yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: list[_Heard] = []
        self._ended: list[_Ended] = []
        self._shown: frozenset[str] = frozenset()  # ordinary jobs of the last look

    def hear(self, announcements: tuple[Announcement, ...]) -> bool:
        """Remember submitted and ended jobs; whether there were any."""
        heard = [
            _Heard(at_s=self._clock(), job=said.job, shown_before=self._shown)
            for said in announcements
            if said.job is not None
        ]
        ended = [
            _Ended(at_s=self._clock(), said_s=said.at_s, nodes=frozenset(said.nodes))
            for said in announcements
            if said.nodes
        ]
        self._heard += heard
        self._ended += ended
        return bool(heard or ended)

    def look_begins(self) -> float:
        """Return what ``add_to`` wants to know of a look."""
        return self._clock()

    def add_to(self, snapshot: Snapshot, began: float = -math.inf) -> Snapshot:
        """Return a look with the jobs, and ends, it cannot have shown; forget those it can.

        A job that a new look shows, and none before, takes the place of what was announced
        of it: somebody's job in that partition, submitted then, of that size and limit if
        there is one. The nodes of a job that has ended count as idle, though the batch system
        may still clear them: who can start on them, and on ours beside, does so in a moment.

        Args:
            snapshot: of a look, or what was returned of one before.
            began: what ``look_begins`` said of a new look.
        """
        if snapshot.jobs is None:
            return snapshot
        ours = {heard.job.job_id for heard in self._heard}
        looked = [job for job in snapshot.jobs if job.job_id not in ours]
        if began > -math.inf:
            self._forget({job.job_id: job for job in looked if job.is_ordinary}, began)
            self._ended = [end for end in self._ended if end.at_s > began]
        for end in self._ended:
            snapshot, looked = _without(end, snapshot, looked)
        if not ours and len(looked) == len(snapshot.jobs or ()):
            return snapshot
        return replace(snapshot, jobs=(*looked, *(heard.job for heard in self._heard)))

    def _forget(self, shown: dict[str, Job], began: float) -> None:
        """Drop what a new look shows, and what it should have shown."""
        self._shown = frozenset(shown)
        for is_the_one in (_is_alike, is_same_job):  # nobody takes the place of a better match
            kept: list[_Heard] = []
            for heard in self._heard:
                for job_id, job in shown.items():
                    if job_id not in heard.shown_before and is_the_one(heard.job, job):
                        del shown[job_id]
                        break
                else:
                    kept.append(heard)
            self._heard = kept
        self._heard = [heard for heard in self._heard if heard.at_s + UNSEEN_S > began]


def _without(end: _Ended, snapshot: Snapshot, jobs: list[Job]) -> tuple[Snapshot, list[Job]]:
    """Take a job that has ended out of a look, if that shows it running."""
    others = [job for job in jobs if not _is_that(job, end)]
    if len(others) == len(jobs):
        return snapshot, jobs
    running = [job for job in others if job.state is JobState.RUNNING]
    in_use = {name for job in running for name in job.nodes}
    nodes = tuple(
        replace(node, state=NodeState.IDLE, left=None)
        if node.name in end.nodes - in_use and node.state is NodeState.ALLOCATED
        else node
        for node in snapshot.nodes or ()
    )
    return replace(snapshot, nodes=nodes), others


def _is_that(job: Job, end: _Ended) -> bool:
    """Whether it is the job that has ended, not one that began there after it."""
    if not job.is_ordinary or job.state is not JobState.RUNNING or job.start_s is None:
        return False
    return job.start_s < end.said_s and end.nodes == set(job.nodes)


def _is_alike(announced: Job, shown: Job) -> bool:
    return (
        shown.n_nodes == announced.n_nodes
        and shown.time_limit_s == announced.time_limit_s
        and is_same_job(announced, shown)
    )


def is_same_job(announced: Job, shown: Job) -> bool:
    """Whether a look shows the job that was announced: both times are whole seconds."""
    when_s = announced.submit_s or 0.0
    return (
        shown.user == announced.user
        and announced.partition in ("", shown.partition)
        and shown.submit_s is not None
        and when_s - 1.0 <= shown.submit_s <= when_s + 2.0
    )
