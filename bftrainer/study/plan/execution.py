"""Carries a plan out: a rule that gives each rung the size and the number of trials it is to have.

It stops and promotes as the rule of the study does; the plan decides how many trials train at once
and on how many nodes each. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bftrainer.study.plan.document import StudyPlan
from bftrainer.study.trials import StudyRule, StudyTrial, TrialStage, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A rule under a plan."""

    rule: StudyRule
    plan: StudyPlan

    @property
    def most(self) -> int:
        """Full budget of a trial."""
        return self.rule.most

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Grant what the rule grants in the present stage, as far as the plan has room for it."""
        by_number = {trial.number: trial for trial in trials}
        active = [self._stage(t.bracket, t.budget) for t in trials if t.stage is TrialStage.ACTIVE]
        wanted = self.rule.verdicts(trials, len(trials) + sum(s.trials for s in self.plan.stages))
        grow = {
            number: self._stage(by_number[number].bracket, budget)
            for number, budget in wanted.grow.items()
        }
        start = [self._stage(one.bracket, one.budget) for one in wanted.start]
        present = min([*active, *grow.values(), *start], default=0)
        stage = self.plan.stages[present]
        left = max(0, min(room, stage.at_once - len(active)))
        growing = [number for number, at in grow.items() if at == present][:left]
        starting = [one for one, at in zip(wanted.start, start, strict=True) if at == present]
        return replace(
            wanted,
            grow={number: wanted.grow[number] for number in growing},
            nodes=dict.fromkeys(growing, stage.gpus_per_trial),
            start=tuple(
                replace(one, nodes=stage.gpus_per_trial) for one in starting[: left - len(growing)]
            ),
        )

    def nodes_of(self, bracket: int, budget: int) -> int:
        """Return the size of a trial that has a budget."""
        return self.plan.stages[self._stage(bracket, budget)].gpus_per_trial

    def describe(self) -> Mapping[str, Any]:
        """Return the rule's name and settings."""
        return self.rule.describe()

    def _stage(self, bracket: int, budget: int) -> int:
        """Return which stage a budget belongs to; one that is not planned to the last below it.

        That is so if trials were added to the study later.
        """
        known = [
            index
            for index, stage in enumerate(self.plan.stages)
            if stage.bracket <= bracket and (stage.bracket < bracket or stage.budget <= budget)
        ]
        return known[-1] if known else 0
