"""Pilots that the journal has forgotten: their directories are left, perhaps their jobs too.

A journal that was restored from a backup, or begun anew, numbers above them. One whose
directory is in our state directory is ours, and is told to leave: nobody can talk to its
agent any more. Others in the queue may be another daemon's and are only named in the log;
they end with their lease or their time limit.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from bftrainer.journal.records import pilot_ordinal
from bftrainer.model.cluster import JobState, Snapshot

LOG = logging.getLogger("bftrainer.pilots")
SECRETS = ("agent.key", "agent.json")


class StrayPilots:
    """What is left of them, at the start and in each look."""

    def __init__(self, pilots_dir: Path, active: Container[str]) -> None:
        """Drop the secrets of all but the active pilots; their logs stay."""
        self._pilots_dir = pilots_dir
        self._named: set[str] = set()
        self.greatest = 0  # of their numbers: ours begin above
        with suppress(OSError):
            for directory in pilots_dir.iterdir():
                self._count(directory.name)
                if directory.name not in active:
                    forget_secrets(directory)

    def to_cancel(self, snapshot: Snapshot, known: Container[str]) -> list[str]:
        """Return the job ids of those in the queue that are ours."""
        found = []
        for job in snapshot.jobs or ():
            pilot_id = job.pilot_id
            if pilot_id is None or pilot_id in known or not self._count(pilot_id):
                continue
            if job.state not in {JobState.PENDING, JobState.RUNNING}:
                continue
            is_ours = (self._pilots_dir / pilot_id).is_dir()
            if is_ours:
                found.append(job.job_id)
            if pilot_id not in self._named:
                self._named.add(pilot_id)
                what = "is cancelled" if is_ours else "is left alone: no directory of it is here"
                LOG.warning(
                    "pilot %s (job %s) is not in the journal: it %s", pilot_id, job.job_id, what
                )
        return found

    def _count(self, name: str) -> bool:
        """Whether it is a pilot's name; then the numbering goes on above it."""
        try:
            self.greatest = max(self.greatest, pilot_ordinal(name))
        except ValueError:
            return False
        return True


def forget_secrets(directory: Path) -> None:
    """Remove the key and the configuration of an agent."""
    for name in SECRETS:
        with suppress(OSError):
            (directory / name).unlink(missing_ok=True)
