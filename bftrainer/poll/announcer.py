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
    """A job was submitted, or has ended."""

    at_s: float  # whole seconds
    partition: str  # "": the default one
    job: Job | None = None  # submitted: what is known of it, its id is a stand-in


class Announcer(Protocol):
    """A source of announcements."""

    def fileno(self) -> int:
        """Becomes readable when there is something."""

    def read(self) -> tuple[Announcement, ...]:
        """Return what has come since the last call; never blocks."""

    def close(self) -> None:
        """Stop listening: nothing more is written for us."""


class Announced:
    """Jobs that were announced and that no look has shown yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._jobs: list[tuple[float, Job]] = []  # with when we heard of them

    def hear(self, announcements: tuple[Announcement, ...]) -> bool:
        """Remember submitted jobs; whether there were any."""
        jobs = [(self._clock(), said.job) for said in announcements if said.job is not None]
        self._jobs += jobs
        return bool(jobs)

    def look_begins(self) -> float:
        """Return what ``add_to`` wants to know of a look."""
        return self._clock()

    def add_to(self, snapshot: Snapshot, began: float = -math.inf) -> Snapshot:
        """Return a look with the jobs it cannot have shown; forget those it can.

        A job that it does show takes the place of what was announced of it: somebody's
        job in that partition, submitted then.

        Args:
            snapshot: of a look, or what was returned of one before.
            began: what ``look_begins`` said; without it nothing is too old.
        """
        if snapshot.jobs is None or not self._jobs:
            return snapshot
        ours = {job.job_id for _, job in self._jobs}
        looked = [job for job in snapshot.jobs if job.job_id not in ours]
        shown = [job for job in looked if job.is_ordinary]
        kept: list[tuple[float, Job]] = []
        for heard, job in self._jobs:
            known = next((j for j in shown if is_same_job(job, j)), None)
            if known is not None:
                shown.remove(known)
            elif heard + UNSEEN_S > began:
                kept.append((heard, job))
        self._jobs = kept
        return replace(snapshot, jobs=(*looked, *(job for _, job in kept)))


def is_same_job(announced: Job, shown: Job) -> bool:
    """Whether a look shows the job that was announced: both times are whole seconds."""
    when_s = announced.submit_s or 0.0
    return (
        shown.user == announced.user
        and announced.partition in ("", shown.partition)
        and shown.submit_s is not None
        and when_s - 1.0 <= shown.submit_s <= when_s + 2.0
    )
