"""The rule ``pbt``: population based training (Jaderberg et al. 2017).

A trial waits after each interval. If it is among the worst quarter of those with a value there, it
is stopped, and a new trial with the state and the changed parameters of one of the best quarter
takes its place; otherwise it trains on. A trial stopped by the user is replaced, too; one that
failed is not. Choices are drawn from the study's seed and what the trials show. Pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bftrainer.study.ladder import best_first, require
from bftrainer.study.trials import Start, StudyTrial, TrialStage, Verdicts

_QUARTER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pbt:
    """A population whose worst take over from the best."""

    population: int
    interval: int
    most: int
    minimum: int = _QUARTER  # values at the end of an interval, before anybody is replaced
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            population=(self.population, 1),
            interval=(self.interval, 1),
            most=(self.most, self.interval),
            minimum=(self.minimum, _QUARTER),
        )

    @property
    def wanted(self) -> int:
        """Trials that it starts without another one's state."""
        return self.population

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Stop the worst, start what is missing, then let those that trained least go on."""
        stop = self._worst(trials)
        room = max(room, 0)
        fresh = self.population - sum(trial.parent is None for trial in trials)
        start = [Start(budget=self.interval)] * max(min(fresh, room), 0)
        heirs = self._heirs(trials, stop)
        start += heirs[: room - len(start)]
        waiting = sorted(
            (trial.budget, trial.number)
            for trial in trials
            if trial.stage is TrialStage.WAITING and trial.number not in stop
        )
        living = any(not t.stage.is_over and t.number not in stop for t in trials)
        return Verdicts(
            grow={number: self._next(budget) for budget, number in waiting[: room - len(start)]},
            stop=stop,
            start=tuple(start),
            is_over=fresh <= 0 and not heirs and not living,
        )

    def describe(self) -> Mapping[str, Any]:
        """Return name and settings."""
        return {"name": "pbt", **asdict(self)}

    def _next(self, budget: int) -> int:
        return min(budget + self.interval, self.most)

    def _worst(self, trials: Sequence[StudyTrial]) -> dict[int, str]:
        """Return the trials to replace, if there is a trial to replace them."""
        stop: dict[int, str] = {}
        for budget in {t.budget for t in trials if t.stage is TrialStage.WAITING}:
            standing = self._standing(trials, budget)
            quarter = len(standing) // _QUARTER
            if not self._parents(trials, standing):
                continue
            worst = {number for _, number in standing[-quarter:]}
            why = f"It is among the worst {quarter} of {len(standing)} at {budget}."
            stop |= {
                trial.number: why
                for trial in trials
                if trial.stage is TrialStage.WAITING
                and trial.budget == budget
                and trial.number in worst
            }
        return stop

    def _standing(self, trials: Sequence[StudyTrial], budget: int) -> list[tuple[float, int]]:
        """Return the trials that are compared at a budget, best first; failed ones are not."""
        return best_first((t for t in trials if t.stage is not TrialStage.FAILED), budget)

    def _heirs(self, trials: Sequence[StudyTrial], stop: Mapping[int, str]) -> list[Start]:
        """Return the trials that are to replace those that were or are stopped."""
        replaced = sum(trial.parent is not None for trial in trials)
        stopped = sum(trial.stage is TrialStage.STOPPED for trial in trials) + len(stop)
        if stopped <= replaced:
            return []
        rest = [trial for trial in trials if trial.number not in stop]
        for budget in sorted({trial.budget for trial in trials}, reverse=True):
            parents = self._parents(rest, self._standing(trials, budget))
            if parents:  # the newest comparison that counts
                return [self._heir(parents, number) for number in range(replaced, stopped)]
        return []

    def _parents(
        self, trials: Sequence[StudyTrial], standing: Sequence[tuple[float, int]]
    ) -> list[StudyTrial]:
        """Return the trials of the best quarter whose state has something left to train."""
        if len(standing) < self.minimum:
            return []
        quarter = standing[: len(standing) // _QUARTER]
        best = {number for value, number in quarter if value < math.inf}
        return [
            trial
            for trial in trials
            if trial.number in best
            and not trial.stage.is_over
            and (trial.stage is TrialStage.ACTIVE or trial.budget < self.most)
        ]

    def _heir(self, parents: Sequence[StudyTrial], number: int) -> Start:
        """Return the replacement with a number, which trains to its parent's next end."""
        drawn = hashlib.sha256(f"{self.seed} {number}".encode()).digest()
        parent = parents[int.from_bytes(drawn[:8], "big") % len(parents)]
        waits = parent.stage is TrialStage.WAITING
        return Start(
            budget=self._next(parent.budget) if waits else parent.budget, parent=parent.number
        )
