"""Records the course of a replay over time, without slowing its decisions.

A ``Recorder`` has the sums of a replay and its admitted trainers. After each plan it records the
duration of the decision and, at intervals, the sums. The report draws the ``History``. Used by
``session.record``.
"""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.lab.simulator.trainers import SimTrainer, Tally

MAX_NOTES = 2000  # of a replay: more than a figure can show


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSums:
    """Sums from the start of the replay to one instant."""

    at_s: float
    processed: float  # samples up to the end of each trainer
    node_s_offered: float
    node_s_training: float
    lost_to_preemptions: float  # samples
    lost_to_rescales: float  # samples


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The course of one replay."""

    notes: tuple[RunningSums, ...]  # in order of time; the last is the end of the replay
    decision_s: tuple[float, ...]  # wall time of each decision


class Recorder:
    """Writes a history; ``decided`` is called after each decision."""

    def __init__(
        self, tally: Tally, admitted: list[SimTrainer], span_s: tuple[float, float]
    ) -> None:
        begin_s, end_s = span_s
        self._tally, self._admitted = tally, admitted
        self._every_s = (end_s - begin_s) / MAX_NOTES
        self._next_s = begin_s
        self._end_s = end_s
        self._decide_s = 0.0
        self._decision_s: list[float] = []
        self._notes: list[RunningSums] = []
        self._processed_by_the_completed = 0.0

    def decided(self, now_s: float) -> None:
        """Record a decision that has been applied."""
        total_s = self._tally.decide_s
        self._decision_s.append(total_s - self._decide_s)
        self._decide_s = total_s
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._note(now_s)

    def history(self) -> History:
        """Return the history of a finished replay."""
        self._note(self._end_s)
        return History(notes=tuple(self._notes), decision_s=tuple(self._decision_s))

    def _note(self, now_s: float) -> None:
        tally = self._tally
        self._notes.append(
            RunningSums(
                at_s=now_s,
                processed=self._processed(),
                node_s_offered=tally.node_s_offered,
                node_s_training=tally.node_s_used,
                lost_to_preemptions=tally.preemption_cost,
                lost_to_rescales=tally.rescale_cost,
            )
        )

    def _processed(self) -> float:
        """Return the samples so far; completed trainers are summed once."""
        running, so_far = [], 0.0
        for trainer in self._admitted:
            processed = min(trainer.done, trainer.submission.samples)
            if trainer.finished_s is None:
                running.append(trainer)
                so_far += processed
            else:
                self._processed_by_the_completed += processed
        self._admitted[:] = running
        return so_far + self._processed_by_the_completed
