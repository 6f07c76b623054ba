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

from bftrainer.poll.snapshot import Job, Snapshot

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


class Announced:
    """Jobs that were announced and that no look has shown yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard: list[_Heard] = []
        self._shown: frozenset[str] = frozenset()  # ordinary jobs of the last look

    def hear(self, announcements: tuple[Announcement, ...]) -> bool:
        """Remember submitted jobs; whether there were any."""
        heard = [
            _Heard(at_s=self._clock(), job=said.job, shown_before=self._shown)
            for said in announcements
            if said.job is not None
        ]
        self._heard += heard
        return bool(heard)

    def look_begins(self) -> float:
        """Return what ``add_to`` wants to know of a look."""
        return self._clock()

    def add_to(self, snapshot: Snapshot, began: float = -math.inf) -> Snapshot:
        """Return a look with the jobs it cannot have shown; forget those it can.

        A job that a new look shows, and none before, takes the place of what was announced
        of it: somebody's job in that partition, submitted then, of that size and limit if
        there is one.

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
        if not ours:
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
