"""Who is beside a machine, with preemptable jobs on it: bftrainer, or its ordinary users."""

from __future__ import annotations

from typing import Protocol

from bftrainer.lab.site.jobs import Job, Preemptable


class Neighbour(Protocol):
    """Who has preemptable jobs on the machine, and is told what Slurm tells."""

    def submitted(self, job: Job) -> None:
        """A user submits an ordinary job."""

    def ended(self, job: Job) -> None:
        """An ordinary job has ended."""

    def started(self, mine: Preemptable) -> None:
        """Slurm has started a job of the neighbour's."""

    def gone(self, mine: Preemptable, *, is_preempted: bool) -> None:
        """It has ended: cancelled, at its limit, or preempted."""
