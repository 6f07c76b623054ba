"""The rule ``median``: median stopping (after Golovin et al. 2017).

Every trial has the full budget. It is stopped when its best value so far is worse than the median
of what the trials that were complete by then had reported at the same units. So does Optuna's
MedianPruner (release 5.0). A trial is judged by its newest report. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bftrainer.study.ladder import require
from bftrainer.study.rungs.none import train_fully
from bftrainer.study.trials import StudyTrial, TrialStage, Value, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Median:
    """Stops trials that are worse than half of the complete ones."""

    trials: int
    most: int
    startup_trials: int = 5  # nobody is stopped before so many are complete
    warmup: int = 0  # nor before so many units
    interval: int = 1  # units between two judgements of a trial

    def __post_init__(self) -> None:
        require(
            trials=(self.trials, 1),
            most=(self.most, 1),
            startup_trials=(self.startup_trials, 0),
            warmup=(self.warmup, 0),
            interval=(self.interval, 1),
        )

    @property
    def wanted(self) -> int:
        """Trials that it starts."""
        return self.trials

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Stop the active trials that are worse than the median, and start new ones."""
        due = [t for t in trials if not t.stage.is_over and self._is_due(t.values)]
        stop = self._worse(trials, due)
        return train_fully(trials, room, self.trials, self.most, stop)

    def describe(self) -> Mapping[str, Any]:
        """Return name and settings."""
        return {"name": "median", **asdict(self)}

    def _is_due(self, values: Sequence[Value]) -> bool:
        """Tell whether the newest report is the first of an interval."""
        if not values or values[-1].units < self.warmup:
            return False
        past = (values[-1].units - self.warmup) // self.interval * self.interval + self.warmup
        return len(values) == 1 or values[-2].units < past

    def _worse(self, trials: Sequence[StudyTrial], due: Sequence[StudyTrial]) -> dict[int, str]:
        """Return the trials that are worse than the median."""
        complete = sorted(
            (trial.values[-1].order, trial.number)
            for trial in trials
            if trial.stage is TrialStage.COMPLETE
            and trial.values
            and not math.isnan(trial.values[-1].value)
        )
        worse: dict[int, str] = {}
        reported = _reported(trials, complete, {trial.values[-1].units for trial in due})
        medians: dict[tuple[int, int], float] = {}
        for trial in due:
            last = trial.values[-1]
            count = bisect_left(complete, (last.order, trial.number))
            if count < max(self.startup_trials, 1):
                continue
            key = last.units, count
            if key not in medians:
                medians[key] = _median(reported[last.units][:count])
            best = min((v.value for v in trial.values if not math.isnan(v.value)), default=None)
            if best is None:
                worse[trial.number] = "It has reported no number."
            elif best > medians[key]:
                worse[trial.number] = (
                    f"Its best value is {best:.6g}, the median at {last.units} is"
                    f" {medians[key]:.6g}."
                )
        return worse


def _reported(
    trials: Sequence[StudyTrial], complete: list[tuple[float, int]], units: set[int]
) -> dict[int, list[float]]:
    """Return what complete trials reported at some units, in the order of their ends."""
    found: dict[int, list[float]] = {one: [math.nan] * len(complete) for one in units}
    if units:
        of = {trial.number: trial for trial in trials}
        for index, (_, number) in enumerate(complete):
            for value in of[number].values:
                if value.units in found:
                    found[value.units][index] = value.value
    return found


def _median(values: list[float]) -> float:
    """Return the median of what is a number; NaN, which nothing is worse than, if nothing is.

    Between infinite values, too, it is NaN, as for Optuna's pruner.
    """
    array = np.array(values)
    array = array[~np.isnan(array)]
    with np.errstate(invalid="ignore"):
        return float(np.percentile(array, 50)) if len(array) else math.nan
