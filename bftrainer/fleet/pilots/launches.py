"""What follows from the batch system's answers to requests for pilots.

No thread and no clock of its own: ``requests`` submits in background threads, the simulated site
in the time of its machine (docs/adr/0050-one-engine.md).
"""

from __future__ import annotations

from bftrainer.fleet.pilots.pilots import Pilot, PilotBook
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.model.errors import BatchSystemError, UnansweredError
from bftrainer.model.trainer import TrainerRecord


class LaunchAnswers:
    """Keeps what the answers to requests say, of the pilots and of those who are charged."""

    def __init__(self, pilots: PilotBook, refusals: PilotRefusals) -> None:
        self._pilots, self._refusals = pilots, refusals

    def is_still_wanted(self, pilot: Pilot) -> bool:
        """Return whether to submit a pilot now; one released before its turn is ended instead."""
        if not pilot.is_leaving:
            return True
        self._pilots.end(pilot.record.pilot_id, pilot.record.reason)
        return False

    def accepted(self, pilot: Pilot, job_id: str, trainer: TrainerRecord | None) -> list[str]:
        """Record that the batch system has a pilot, which is for this trainer.

        Returns:
            The jobs to cancel: it was released before the answer came.
        """
        self._refusals.accepted(trainer)
        self._pilots.launched(pilot, job_id)
        if not pilot.is_leaving:
            return []
        return self._pilots.job_ids([pilot.record.pilot_id])

    def failed(
        self, pilot: Pilot, problem: BatchSystemError, trainer: TrainerRecord | None
    ) -> bool:
        """Record that a request failed.

        Returns:
            Whether the pilot is ended; it is not while the batch system may have its job.
        """
        self._refusals.refused(problem.cause, trainer)
        if isinstance(problem, UnansweredError):
            self._pilots.unanswered(pilot, problem.cause)
            return False
        self._pilots.end(pilot.record.pilot_id, f"The batch system refused it ({problem.cause})")
        return True
