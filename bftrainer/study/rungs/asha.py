"""The rule ``asha``: asynchronous successive halving by promotion (Li et al. 2020, Algorithm 2).

A trial waits at each rung. Whenever there is room, the best that may go on does, highest rung
first: it has to be among the top floor(n / eta) of the n trials with a value at the rung. If there
is none, a new trial starts. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bftrainer.study.ladder import Halving, best_first, ladder, rung_of
from bftrainer.study.trials import Start, StudyTrial, TrialStage, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Asha(Halving):
    """Promotion whenever there is room."""

    name: ClassVar[str] = "asha"

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Promote, then start; at the end stop trials that cannot be promoted any more."""
        budgets = [rung.budget for rung in ladder(self.trials, self.least, self.most, self.eta)]
        up = dict(self.promotable(trials, budgets))
        grow = dict(list(up.items())[: max(room, 0)])
        missing = self.trials - len(trials)
        starts = max(min(missing, room - len(grow)), 0)
        is_over = (
            missing <= 0
            and not up
            and not any(t.stage is TrialStage.ACTIVE and t.budget < self.most for t in trials)
        )
        return Verdicts(
            grow=grow,
            stop=dict(self._left_behind(trials)) if is_over else {},
            start=(Start(budget=budgets[0]),) * starts,
            is_over=is_over,
        )

    def promotable(
        self, trials: Sequence[StudyTrial], budgets: list[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield the trials that may go on, each with its budget, highest rung first, best first."""
        at = {trial.number: rung_of(trial, budgets) for trial in trials}
        waiting = {trial.number for trial in trials if trial.stage is TrialStage.WAITING}
        for rung in range(len(budgets) - 2, -1, -1):
            standing = best_first((t for t in trials if at[t.number] >= rung), budgets[rung])
            for value, number in standing[: len(standing) // self.eta]:
                if number in waiting and at[number] == rung and value < math.inf:
                    yield number, budgets[rung + 1]

    @staticmethod
    def _left_behind(trials: Sequence[StudyTrial]) -> Iterator[tuple[int, str]]:
        for trial in trials:
            if trial.stage is TrialStage.WAITING:
                yield trial.number, f"It is not among the best at the rung of {trial.budget}."
