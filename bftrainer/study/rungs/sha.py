"""The rule ``sha``: synchronous successive halving (Jamieson and Talwalkar 2016).

All trials of a rung are compared once each of them has a value or is over. The top
floor(n / eta) of the n that began go on, at least one, and the others are stopped. Failed ones and
those without a value count among the n, but never go on. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bftrainer.study.ladder import Halving, Rung, best_first, ladder, rung_of
from bftrainer.study.trials import Start, StudyTrial, TrialStage, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Sha(Halving):
    """One bracket of successive halving."""

    name: ClassVar[str] = "sha"

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Compare the lowest rung that is not settled."""
        rungs = ladder(self.trials, self.least, self.most, self.eta)
        return halve(trials, rungs, self.eta, room)


def halve(
    trials: Sequence[StudyTrial], rungs: Sequence[Rung], eta: int, room: int, bracket: int = 0
) -> Verdicts:
    """Judge the trials of one bracket."""
    missing = rungs[0].trials - len(trials)
    if missing > 0:
        start = Start(budget=rungs[0].budget, bracket=bracket)
        return Verdicts(start=(start,) * max(min(missing, room), 0))
    budgets = [rung.budget for rung in rungs]
    at = {trial.number: rung_of(trial, budgets) for trial in trials}
    for rung, budget in enumerate(budgets[:-1]):
        here = [trial for trial in trials if at[trial.number] == rung]
        if any(trial.stage is TrialStage.ACTIVE for trial in here):
            return Verdicts()
        waiting = [trial for trial in here if trial.stage is TrialStage.WAITING]
        if waiting:
            beyond = sum(one > rung for one in at.values())
            began = beyond + len(here)
            places = max(began // eta, 1) - beyond
            up = [
                number
                for value, number in best_first(waiting, budget)[: max(places, 0)]
                if value < math.inf
            ]
            why = f"It is not among the best {max(began // eta, 1)} of {began} at {budget}."
            kept = set(up)
            stop = {trial.number: why for trial in waiting if trial.number not in kept}
            grow = dict.fromkeys(up[: max(room, 0)], budgets[rung + 1])
            return Verdicts(grow=grow, stop=stop, is_over=not up and not beyond)
    return Verdicts(is_over=True)
