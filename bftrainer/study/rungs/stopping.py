"""The rule ``stopping``: asynchronous successive halving without waiting.

Every trial has the full budget. With its first report at or beyond a rung it is compared with all
reports there so far, its own included: it is stopped unless its value is among the best
max(1, floor(n / eta)). So does Optuna's SuccessiveHalvingPruner (release 5.0). Reports are judged
in the order in which they were made, however many come in between two calls. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bftrainer.study.ladder import Halving, first_beyond
from bftrainer.study.rungs.none import train_fully
from bftrainer.study.trials import StudyTrial, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Halving):
    """Stops at rungs, never parks."""

    name: ClassVar[str] = "stopping"

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Stop the active trials that have fallen behind, and start new ones."""
        behind = self._behind(trials)
        stop = {
            trial.number: behind[trial.number]
            for trial in trials
            if not trial.stage.is_over and trial.number in behind
        }
        return train_fully(trials, room, self.trials, self.most, stop)

    def _behind(self, trials: Sequence[StudyTrial]) -> dict[int, str]:
        """Return the trials that fell behind, and where, from all reports anew."""
        budgets = [self.least]
        while budgets[-1] * self.eta < self.most:
            budgets.append(budgets[-1] * self.eta)
        seen: list[list[float]] = [[] for _ in budgets]
        behind: dict[int, str] = {}
        for _, number, rung, value in sorted(_arrivals(trials, budgets)):
            if number in behind:
                continue
            if math.isnan(value):
                behind[number] = f"It reported no number at {budgets[rung]}."
                continue
            insort(seen[rung], value)
            if not self.goes_on(value, seen[rung]):
                place, n = bisect_left(seen[rung], value) + 1, len(seen[rung])
                behind[number] = f"Its value was number {place} of {n} at {budgets[rung]}."
        return behind

    def goes_on(self, value: float, seen: Sequence[float]) -> bool:
        """Tell whether a trial goes on, by all values at its rung in ascending order."""
        return value <= seen[max(len(seen) // self.eta, 1) - 1]


def _arrivals(
    trials: Sequence[StudyTrial], budgets: list[int]
) -> Iterator[tuple[float, int, int, float]]:
    """Yield for each report at a rung its time, trial, rung and value."""
    for trial in trials:
        for rung, budget in enumerate(budgets):
            value = first_beyond(trial, budget)
            if value is None:
                break
            yield value.order, trial.number, rung, value.value
