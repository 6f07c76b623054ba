"""Notifications from the batch system between two polls.

An adapter with such a source offers an ``Announcer``; the daemon waits on its file descriptor and
reacts at once. Nothing relies on it: a lost announcement costs the time until the next poll.

A job is announced before the batch system has accepted it, and any user may submit jobs that it
refuses. So only one announced job per user counts, ``decide.giveback`` releases one node for it,
and a user whose announced job no poll shows is not believed for a while.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot

# A poll that begins this long after an announcement almost always shows the job (Slurm 22.05:
# 75 of 75 squeue calls begun at once did) ...
SHOWN_S = 0.02
UNSEEN_S = 1.0  # ... and one that begins after this must show it, or the job was refused
DOUBTED_S = 60.0  # after a refusal, the user's announcements are ignored this long
TASK_MARK = "_"  # in the id of an array's task
MOST_HEARD = 100  # announced jobs kept per user between two polls; only one counts anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A job was submitted, was changed, or has ended."""

    at_s: float  # whole seconds
    partition: str  # "": the default one, or any of several
    job: Job | None = None  # submitted: as far as known, with a stand-in id
    nodes: tuple[str, ...] = ()  # ended: its nodes
    job_id: str = ""  # ended: its number, which is not the id that an array's task is shown with


class Announcer(Protocol):
    """A source of announcements."""

    @property
    def hears_all(self) -> bool:
        """True if it is told of every job; else the daemon polls as if there were no source."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is something to read."""

    def read(self) -> tuple[Announcement, ...]:
        """Return what has arrived since the last call; never blocks."""

    def close(self) -> None:
        """Unsubscribe: nothing more is written for us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """An announced job."""

    at_s: float
    job: Job
    shown_before: frozenset[str]  # jobs of earlier snapshots: none of them is this one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """An announced end of a job."""

    at_s: float
    said_s: float  # on the batch system's clock, whole seconds
    nodes: frozenset[str]
    job_id: str  # "": not told


class UnseenAnnouncements:
    """Announced jobs, and announced ends of jobs, that no snapshot has shown yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: list[_Heard] = []
        self._doubted_until_s: dict[str, float] = {}  # users
        self._ended: list[_Ended] = []
        self._shown: frozenset[str] = frozenset()  # ordinary jobs of the last snapshot
        self._woke_s = -math.inf

    def hear(self, announcements: tuple[Announcement, ...]) -> bool:
        """Record submitted and ended jobs; return whether there were any."""
        n_heard_of = Counter(heard.job.user for heard in self._heard)
        now_s, is_news = self._clock(), False
        for announcement in announcements:
            job = announcement.job
            if job is not None:
                is_news = True
                n_heard_of[job.user] += 1
                if n_heard_of[job.user] <= MOST_HEARD:
                    heard = _Heard(at_s=now_s, job=job, shown_before=self._shown)
                    self._heard.append(heard)
            if announcement.nodes:
                is_news = True
                ended = _Ended(
                    at_s=now_s,
                    said_s=announcement.at_s,
                    nodes=frozenset(announcement.nodes),
                    job_id=announcement.job_id,
                )
                self._ended.append(ended)
        return is_news

    def slept(self) -> None:
        """Believe no user less for jobs heard until a moment from now: they may be over."""
        self._woke_s = self._clock()

    @property
    def is_unshown(self) -> bool:
        """Return whether an announced job awaits the poll that must show it."""
        return bool(self._heard)

    def look_begins(self) -> float:
        """Return the time that ``add_to`` needs about a new poll."""
        return self._clock()

    def add_to(self, snapshot: Snapshot, began: float = -math.inf) -> Snapshot:
        """Add announced jobs and ends that the snapshot cannot show; forget those it can.

        Of a user's announced jobs only the first counts; of a doubted user's none. A job new in the
        snapshot replaces the announcement it matches: same user, partition and time of
        submission, preferably same size and limit. The nodes of an ended job count as idle although
        the batch system may still be cleaning them up, because a job that can use them and some of
        ours starts within moments.

        Args:
            snapshot: a new one, or what an earlier call returned.
            began: of a new one, what ``look_begins`` returned before the poll.
        """
        if snapshot.jobs is None:
            return snapshot
        looked = [job for job in snapshot.jobs if not job.is_announced]
        if began > -math.inf and "jobs" not in snapshot.unread:
            self._forget([job for job in looked if job.is_ordinary], began)
            self._ended = [end for end in self._ended if end.at_s > began]
        for end in self._ended:
            snapshot, looked = _without(end, snapshot, looked)
        jobs = (*looked, *self._stand_ins())
        if jobs == snapshot.jobs:
            return snapshot
        return replace(snapshot, jobs=jobs)

    def _stand_ins(self) -> Iterable[Job]:
        first: dict[str, Job] = {}
        for heard in self._heard:
            if self._doubted_until_s.get(heard.job.user, -math.inf) <= self._clock():
                first.setdefault(heard.job.user, heard.job)
        return first.values()

    def _forget(self, looked: Sequence[Job], began: float) -> None:
        """Drop shown jobs; doubt the users of jobs that should have been shown."""
        self._shown = frozenset(job.job_id for job in looked)
        jobs_of: dict[str, dict[str, Job]] = {heard.job.user: {} for heard in self._heard}
        for job in looked:
            if job.user in jobs_of:
                jobs_of[job.user][job.job_id] = job
        for is_match in (is_alike, is_same_job):  # exact matches first
            unmatched: list[_Heard] = []
            for heard in self._heard:
                candidates = jobs_of[heard.job.user]
                for job_id, job in candidates.items():
                    if job_id not in heard.shown_before and is_match(heard.job, job):
                        del candidates[job_id]
                        break
                else:
                    unmatched.append(heard)
            self._heard = unmatched
        doubted_until_s = dict(self._doubted_until_s)
        may_still_be_shown: list[_Heard] = []
        for heard in self._heard:
            if heard.at_s + UNSEEN_S > began:
                may_still_be_shown.append(heard)
            elif heard.at_s > self._woke_s + UNSEEN_S:
                # One heard before the last sleep may have begun and ended unseen.
                doubted_until_s[heard.job.user] = began + DOUBTED_S
        self._heard = may_still_be_shown
        self._doubted_until_s = {
            user: until_s for user, until_s in doubted_until_s.items() if until_s > began
        }


def _without(end: _Ended, snapshot: Snapshot, jobs: list[Job]) -> tuple[Snapshot, list[Job]]:
    """Remove an ended job that the snapshot still shows as running."""
    candidates = [job for job in jobs if _may_be_that(job, end)]
    same_id = [job for job in candidates if job.job_id == end.job_id]
    candidates = same_id or candidates
    if len(candidates) != 1:  # jobs share the nodes: which of them has ended is not said
        return snapshot, jobs
    jobs_left = [job for job in jobs if job is not candidates[0]]
    unused_nodes = set(end.nodes)
    for job in jobs_left:
        if job.state is JobState.RUNNING:
            unused_nodes.difference_update(job.nodes)
    nodes: list[Node] = []
    for node in snapshot.nodes or ():
        if node.name in unused_nodes and node.state is NodeState.ALLOCATED:
            nodes.append(_emptied(node))
        else:
            nodes.append(node)
    return replace(snapshot, nodes=tuple(nodes)), jobs_left


def _emptied(node: Node) -> Node:
    """Return a node without its last job."""
    lends = tuple([replace(lent, n_free=lent.n_gpus) for lent in node.lends])
    return replace(node, state=NodeState.IDLE, left=None, lends=lends)


def _may_be_that(job: Job, end: _Ended) -> bool:
    """Return whether it may be the job that ended, and not one that started there later."""
    if not job.is_ordinary or job.state is not JobState.RUNNING or job.start_s is None:
        return False
    is_task = TASK_MARK in job.job_id
    if end.job_id and not is_task and job.job_id != end.job_id:
        return False
    return job.start_s < end.said_s and end.nodes == set(job.nodes)


def is_alike(announced: Job, shown: Job) -> bool:
    """Return whether a shown job may be the announced one, and has its size and limit."""
    has_same = shown.time_limit_s == announced.time_limit_s and shown.n_nodes == announced.n_nodes
    return has_same and is_same_job(announced, shown)


def is_same_job(announced: Job, shown: Job) -> bool:
    """Return whether a shown job may be the announced one; both times are whole seconds.

    An announcement that knows the job's id carries it as its family (LSF).
    """
    if announced.family:
        return announced.user == shown.user and announced.family == shown.counts_as
    when_s = announced.submit_s or 0.0
    return (
        shown.user == announced.user
        and announced.partitions in ((), shown.partitions)
        and shown.submit_s is not None
        and when_s - 1.0 <= shown.submit_s <= when_s + 2.0
    )
