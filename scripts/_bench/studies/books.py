"""The paper's costs for the trials of a study, where ends and reports are events of their own.

``PaperModel`` notices a completion at the pool's next event, as the paper's replayer does. A study
has an answer for it at once.
"""

from __future__ import annotations

import math

from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.trainers import SimTrainer

CLOSE_S = 1e-6  # so near to its goal a trainer has reached it: clocks are floats


class PromptModel(PaperModel):
    """Progress and costs of the trainers that may run; what they reach is seen at once."""

    sees_arrivals = True

    @property
    def next_event_s(self) -> float:
        """When a trainer reaches the end of its budget or its next report."""
        return min((self._now_s + _left_s(t) for t in self._running.values()), default=math.inf)

    def step(self) -> bool:
        """Count those that are as near to their goal as the clock can tell as being there."""
        for trainer in self._running.values():
            if _left_s(trainer) <= CLOSE_S:
                trainer.done = max(trainer.done, trainer.goal)
        return False


def _left_s(trainer: SimTrainer) -> float:
    rate = trainer.rate
    return max(0.0, trainer.goal - trainer.done) / rate if rate > 0.0 else math.inf
