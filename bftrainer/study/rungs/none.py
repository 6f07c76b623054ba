"""The rule ``none``: every trial trains to the full budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bftrainer.study.ladder import require
from bftrainer.study.trials import Start, StudyTrial, TrialStage, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """No rungs."""

    trials: int
    most: int

    def __post_init__(self) -> None:
        require(trials=(self.trials, 1), most=(self.most, 1))

    @property
    def wanted(self) -> int:
        """Trials that it starts."""
        return self.trials

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Grow trials that have less than the full budget, then start new ones."""
        return train_fully(trials, room, self.trials, self.most, {})

    def describe(self) -> Mapping[str, Any]:
        """Return name and settings."""
        return {"name": "none", **asdict(self)}


def train_fully(
    trials: Sequence[StudyTrial], room: int, total: int, most: int, stop: Mapping[int, str]
) -> Verdicts:
    """Give each trial that is not stopped the full budget, then start what is missing."""
    living = [trial for trial in trials if not trial.stage.is_over and trial.number not in stop]
    waiting = [trial.number for trial in living if trial.stage is TrialStage.WAITING]
    grow = dict.fromkeys(waiting[: max(room, 0)], most)
    missing = total - len(trials)
    starts = max(min(missing, room - len(grow)), 0)
    return Verdicts(
        grow=grow,
        stop=stop,
        start=(Start(budget=most),) * starts,
        is_over=missing <= 0 and not living,
    )
