"""A rule and a pruner of Optuna, asked about the same reports one after another.

The rule decides; the pruner is told what happened and asked after each report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.trial import TrialState

from bftrainer.study.trials import StudyRule, StudyTrial, TrialStage, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One report and what the two made of it."""

    trial: int
    units: int
    ours: bool  # whether it is stopped
    theirs: bool


@dataclass(slots=True, kw_only=True)
class Beside:
    """A rule that asks the pruner, too."""

    rule: StudyRule
    pruner: BasePruner
    judged: list[Judged] = field(default_factory=list)
    _study: optuna.Study = field(init=False)
    _trials: list[optuna.Trial] = field(default_factory=list)
    _heard: list[int] = field(default_factory=list)  # reports passed on, by trial

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(
            study_name="beside",
            pruner=self.pruner,
            sampler=optuna.samplers.RandomSampler(seed=0),
        )

    @property
    def most(self) -> int:
        """Full budget."""
        return self.rule.most

    @property
    def differences(self) -> list[Judged]:
        """Reports about which the two do not agree."""
        return [one for one in self.judged if one.ours is not one.theirs]

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Return the rule's verdicts, and note the pruner's about new reports."""
        found, news = self.rule.verdicts(trials, room), set[int]()
        for trial in trials:
            if trial.number == len(self._trials):
                self._trials.append(self._study.ask())
                self._heard.append(0)
            for value in trial.values[self._heard[trial.number] :]:
                self._trials[trial.number].report(value.value, step=value.units)
                self._heard[trial.number] += 1
                self._judge(trial, value.units, is_stopped=trial.number in found.stop)
                news.add(trial.number)
        for number in found.stop:
            if number not in news:  # a verdict that no report called for
                self.judged.append(Judged(trial=number, units=0, ours=True, theirs=False))
            self._study.tell(self._trials[number], state=TrialState.PRUNED)
        return found

    def describe(self) -> Mapping[str, Any]:
        """Return the rule's settings."""
        return self.rule.describe()

    def _judge(self, trial: StudyTrial, units: int, *, is_stopped: bool) -> None:
        if trial.stage is TrialStage.ACTIVE:
            theirs = bool(self._trials[trial.number].should_prune())
            self.judged.append(
                Judged(trial=trial.number, units=units, ours=is_stopped, theirs=theirs)
            )
        elif trial.stage is TrialStage.COMPLETE and not math.isnan(trial.values[-1].value):
            self._study.tell(self._trials[trial.number], trial.values[-1].value)
        else:
            self._study.tell(self._trials[trial.number], state=TrialState.FAIL)
