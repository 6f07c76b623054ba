"""Pilots in the queue that the journal lacks: after a restored backup, or with a new journal.

Numbering continues above them. A pilot whose directory is in our state directory is ours and is
cancelled, because its agent cannot connect any more. Others in the queue may belong to another
daemon and are only logged; they end with their lease or their time limit.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from bftrainer.journal.projection import pilot_ordinal
from bftrainer.model.cluster import JobState, Snapshot

LOG = logging.getLogger("bftrainer.pilots")
SECRETS = ("agent.key", "agent.json")


class StrayPilots:
    """The stray pilots at start and in each snapshot."""

    def __init__(
        self, pilots_dir: Path, active: Container[str], *, believes_names: bool = True
    ) -> None:
        """Drop the secrets of all but the active pilots, each of which has a directory; logs stay.

        Do not believe names where any user may give jobs those of pilots.
        """
        self._pilots_dir, self._believes_names = pilots_dir, believes_names
        self._named: set[str] = set()
        self.greatest = 0  # of their numbers; new ones are above it
        with suppress(OSError):
            for directory in pilots_dir.iterdir():
                self._count(directory.name)
                if directory.name not in active:
                    forget_secrets(directory)

    def to_cancel(self, snapshot: Snapshot, pilot_ids: Container[str]) -> list[str]:
        """Return the job ids of our stray pilots in the queue, other ones than these."""
        job_ids: list[str] = []
        for job in snapshot.jobs or ():
            pilot_id = job.pilot_id
            if pilot_id is None or pilot_id in pilot_ids:
                continue
            is_ours = is_pilot_id(pilot_id) and (self._pilots_dir / pilot_id).is_dir()
            if not ((is_ours or self._believes_names) and self._count(pilot_id)):
                continue
            if job.state not in {JobState.PENDING, JobState.RUNNING}:
                continue
            if is_ours:
                job_ids.append(job.job_id)
            if pilot_id not in self._named:
                self._named.add(pilot_id)
                fate = "is left alone: it has no directory here"
                if is_ours:
                    fate = "is cancelled"
                LOG.warning(
                    "pilot %s (job %s) is not in the journal: it %s", pilot_id, job.job_id, fate
                )
        return job_ids

    def _count(self, name: str) -> bool:
        if is_pilot_id(name):
            self.greatest = max(self.greatest, pilot_ordinal(name))
            return True
        return False


def is_pilot_id(name: str) -> bool:
    """Return whether it is the name of a pilot."""
    try:
        pilot_ordinal(name)
    except ValueError:
        return False
    return True


def forget_secrets(directory: Path) -> None:
    """Remove an agent's key and configuration."""
    for name in SECRETS:
        with suppress(OSError):
            (directory / name).unlink(missing_ok=True)
