"""The stages that a study's rule goes through."""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.study.plan.problem import Experiment, PlanStage
from bftrainer.study.rungs import Full, Hyperband, Rung, Sha, ladder
from bftrainer.study.trials import StudyRule


@dataclass(frozen=True, slots=True, kw_only=True)
class RungStage:
    """A stage of a rule: a rung of one of its brackets."""

    bracket: int
    budget: int  # units of a trial since its beginning
    trials: int
    units: int  # of a trial in this stage


def rung_stages(rule: StudyRule) -> tuple[RungStage, ...]:
    """Return the stages of a rule in which all trials of a rung wait for each other.

    Brackets of Hyperband come one after another.

    Raises:
        ValueError: the rule compares trials at different times.
    """
    if isinstance(rule, Sha):
        brackets: tuple[tuple[Rung, ...], ...] = (
            ladder(rule.trials, rule.least, rule.most, rule.eta),
        )
    elif isinstance(rule, Hyperband):
        brackets = rule.brackets()
    elif isinstance(rule, Full):
        brackets = ((Rung(trials=rule.trials, budget=rule.most),),)
    else:
        name = rule.describe()["name"]
        raise ValueError(f"{name} has no stages that all trials end together")  # noqa: TRY004
    return tuple(
        RungStage(bracket=number, budget=rung.budget, trials=rung.trials, units=rung.budget - below)
        for number, rungs in enumerate(brackets)
        for rung, below in zip(rungs, [0, *(r.budget for r in rungs)], strict=False)
        if rung.trials > 0
    )


def experiment_of(stages: tuple[RungStage, ...]) -> Experiment:
    """Return what the planner knows of them."""
    return tuple(PlanStage(trials=stage.trials, units=stage.units) for stage in stages)
