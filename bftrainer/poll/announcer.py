"""What a batch system says by itself, between two looks.

An adapter that has such a source offers an ``Announcer``; the daemon waits on its file
descriptor and acts on what comes at once. It is a promise of nothing: a lost
announcement costs the time until the next look.

A job is announced before the batch system has accepted it, and anybody may submit what it
refuses. So of all announced jobs of a user one counts, ``decide.giveback`` lets that have
one node, and who announced a job that no look shows is not believed for a while.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bftrainer.model.cluster import Job, JobState, NodeState, Snapshot

# A look that begins so soon after a job was announced shows it, but for bad luck (Slurm 22.05:
# 75 of 75 squeue begun at once did) ...
SHOWN_S = 0.02
UNSEEN_S = 1.0  # ... and one that begins later must: else the job was refused
DOUBTED_S = 60.0  # then nothing is believed of its user
MOST_HEARD = 100  # announced jobs of one user between two looks: all count as one anyway
STAND_IN = "announced-"  # what the ids of such jobs start with


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A job was submitted, was changed, or has ended."""

    at_s: float  # whole seconds
    partition: str  # "": the default one, or any of several
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


class UnseenAnnouncements:
    """Jobs that were announced, and ends of jobs, that no look has shown yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: list[_Heard] = []
        self._doubted_until_s: dict[str, float] = {}  # users
        self._ended: list[_Ended] = []
        self._shown: frozenset[str] = frozenset()  # ordinary jobs of the last look

    def hear(self, announcements: tuple[Announcement, ...]) -> bool:
        """Remember submitted and ended jobs; whether there were any."""
        heard = [
            _Heard(at_s=self._clock(), job=said.job, shown_before=self._shown)
            for said in announcements
            if said.job is not None
        ]
        known = Counter(known.job.user for known in self._heard)
        ended = [
            _Ended(at_s=self._clock(), said_s=said.at_s, nodes=frozenset(said.nodes))
            for said in announcements
            if said.nodes
        ]
        for one in heard:
            known[one.job.user] += 1
            if known[one.job.user] <= MOST_HEARD:
                self._heard.append(one)
        self._ended += ended
        return bool(heard or ended)

    @property
    def is_unshown(self) -> bool:
        """Whether a job was announced that no look has shown: one has to come that must."""
        return bool(self._heard)

    def look_begins(self) -> float:
        """Return what ``add_to`` wants to know of a look."""
        return self._clock()

    def add_to(self, snapshot: Snapshot, began: float = -math.inf) -> Snapshot:
        """Return a look with the jobs, and ends, it cannot have shown; forget those it can.

        Of a user's jobs the one announced first stands for all; of a doubted user's none does.
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
        looked = [job for job in snapshot.jobs if not is_stand_in(job.job_id)]
        if began > -math.inf and "jobs" not in snapshot.unread:
            self._forget([job for job in looked if job.is_ordinary], began)
            self._ended = [end for end in self._ended if end.at_s > began]
        for end in self._ended:
            snapshot, looked = _without(end, snapshot, looked)
        jobs = (*looked, *self._stand_ins())
        return snapshot if jobs == snapshot.jobs else replace(snapshot, jobs=jobs)

    def _stand_ins(self) -> Iterable[Job]:
        first: dict[str, Job] = {}
        for heard in self._heard:
            if self._doubted_until_s.get(heard.job.user, -math.inf) <= self._clock():
                first.setdefault(heard.job.user, heard.job)
        return first.values()

    def _forget(self, looked: Sequence[Job], began: float) -> None:
        """Drop what a new look shows, and what it should have shown: whose that is, is doubted."""
        self._shown = frozenset(job.job_id for job in looked)
        shown: dict[str, dict[str, Job]] = {heard.job.user: {} for heard in self._heard}
        for job in looked:
            if job.user in shown:
                shown[job.user][job.job_id] = job
        for is_the_one in (_is_alike, is_same_job):  # nobody takes the place of a better match
            kept: list[_Heard] = []
            for heard in self._heard:
                candidates = shown[heard.job.user]
                for job_id, job in candidates.items():
                    if job_id not in heard.shown_before and is_the_one(heard.job, job):
                        del candidates[job_id]
                        break
                else:
                    kept.append(heard)
            self._heard = kept
        self._heard = [heard for heard in kept if heard.at_s + UNSEEN_S > began]
        refused = {h.job.user: began + DOUBTED_S for h in kept if h.at_s + UNSEEN_S <= began}
        known = self._doubted_until_s | refused
        self._doubted_until_s = {user: until for user, until in known.items() if until > began}


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


def is_stand_in(job_id: str) -> bool:
    """Whether the job was announced and no look has shown it."""
    return job_id.startswith(STAND_IN)


def is_same_job(announced: Job, shown: Job) -> bool:
    """Whether a look shows the job that was announced: both times are whole seconds."""
    when_s = announced.submit_s or 0.0
    return (
        shown.user == announced.user
        and announced.partitions in ((), shown.partitions)
        and shown.submit_s is not None
        and when_s - 1.0 <= shown.submit_s <= when_s + 2.0
    )
