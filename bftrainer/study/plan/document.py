"""A study's plan as a document: printed by ``study plan``, carried out by ``study run --plan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from bftrainer.study.plan.exact import exact, fastest
from bftrainer.study.plan.problem import Cloud, RungStage, ScalingProfile, experiment_of
from bftrainer.study.plan.published import Algorithm2Reading, descend, greedy, naive, static
from bftrainer.study.plan.stage_cost import Costs, Drawn, Floats, Planned, simulate
from bftrainer.study.trials import StudyRule, StudyTrial, TrialStage, Verdicts

NAME: Final = "study-plan"  # of the document
LOW, HIGH = 0.1, 0.9  # quantiles that are shown
CHECKS = 10  # times the samples that it was chosen by say how often a plan is in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A time or a cost: its mean, and between what four samples of five are."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """One rung of the study: its trials, GPUs and instances, its time and cost."""

    bracket: int
    budget: int  # units of a trial since its beginning
    units: int  # of a trial in this stage
    trials: int
    gpus: int
    gpus_per_trial: int
    at_once: int  # trials that train; the others follow
    instances: int
    time_s: Amount
    cost: Amount

    def __post_init__(self) -> None:
        """Refuse a stage that never ends."""
        if min(self.trials, self.gpus_per_trial, self.at_once) < 1:
            raise ValueError("a stage needs trials, GPUs for each, and some that train at once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The plan of another planner."""

    gpus: tuple[int, ...]  # by stage
    time_s: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """The cheapest plan of a study that is in time on the average."""

    study: str
    unit: str
    rule: Mapping[str, Any]
    deadline_s: float
    in_time: float  # with which probability it ends by the deadline
    time_s: Amount
    cost: Amount
    minimum_cost: float = 0.0  # of that the minimum charge, which no stage has
    bound: float  # no plan that is in time costs less
    stages: tuple[PlannedStage, ...]
    rivals: Mapping[str, Rival | None]  # planner -> its plan; None: it has none that is in time
    scaling: ScalingProfile
    cloud: Cloud

    def __post_init__(self) -> None:
        """Refuse a plan for nothing."""
        if not self.stages:
            raise ValueError("a plan needs stages")

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPUs of each stage."""
        return tuple(stage.gpus for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The study to plan, with its deadline, its speed and the cloud."""

    study: str
    unit: str
    rule: Mapping[str, Any]
    stages: tuple[RungStage, ...]
    deadline_s: float
    most: int  # GPUs at once
    scaling: ScalingProfile
    cloud: Cloud
    samples: int
    seed: int = 0

    @property
    def costs(self) -> Costs:
        """Costs of all plans."""
        return Costs(experiment_of(self.stages), self.scaling, self.cloud, self.samples, self.seed)


def plan_study(request: PlanRequest) -> StudyPlan | None:
    """Return the plan; None: none is in time.

    Where ``exact`` is not sure (a minimum charge, very many labels) the cheapest plan of all
    planners counts, with its bound.
    """
    costs = request.costs
    found = exact(costs, request.deadline_s, request.most)
    if found is None or found.bound is None:
        return None
    rivals, plans = _rivals(request, costs), [found]
    if found.cost > found.bound:
        plans += [one for one in rivals.values() if one is not None]
        plans.append(descend(costs, request.deadline_s, found, Algorithm2Reading.REPAIRED))
    best = min(plans, key=lambda plan: plan.cost)
    drawn = simulate(costs, best.gpus)
    return StudyPlan(
        study=request.study,
        unit=request.unit,
        rule=request.rule,
        deadline_s=request.deadline_s,
        in_time=_in_time(request, best),
        time_s=_amount(drawn.time_s),
        cost=_amount(drawn.cost),
        minimum_cost=round(float((drawn.cost - drawn.stage_cost.sum(0)).mean()), 6),
        bound=round(min(found.bound, float(drawn.cost.mean())), 6),
        stages=_stages(request, costs, best, drawn),
        rivals={name: None if one is None else _rival(costs, one) for name, one in rivals.items()},
        scaling=request.scaling,
        cloud=request.cloud,
    )


def _in_time(request: PlanRequest, plan: Planned) -> float:
    """Return how often the plan is in time, on samples that it was not chosen by."""
    costs = (replace(request.costs, seed=request.seed + n) for n in range(1, CHECKS + 1))
    times_s = np.concatenate([simulate(one, plan.gpus).time_s for one in costs])
    return float(np.mean(times_s <= request.deadline_s * (1.0 + 1e-9)))


def _stages(
    request: PlanRequest, costs: Costs, best: Planned, drawn: Drawn
) -> tuple[PlannedStage, ...]:
    found: list[PlannedStage] = []
    for index, (rung, taken) in enumerate(zip(request.stages, best.stages, strict=True)):
        each, at_once = costs.share(index, taken.gpus)
        found.append(
            PlannedStage(
                bracket=rung.bracket,
                budget=rung.budget,
                units=rung.units,
                trials=rung.trials,
                gpus=taken.gpus,
                gpus_per_trial=each,
                at_once=at_once,
                instances=taken.instances,
                time_s=_amount(drawn.stage_time_s[index]),
                cost=_amount(drawn.stage_cost[index]),
            )
        )
    return tuple(found)


def _rivals(request: PlanRequest, costs: Costs) -> dict[str, Planned | None]:
    deadline_s, most = request.deadline_s, request.most
    return {
        "static": static(costs, deadline_s, most),
        "naive": naive(costs, deadline_s, most),
        **{
            f"greedy-{reading.value}": greedy(costs, deadline_s, most, reading)
            for reading in Algorithm2Reading
        },
    }


def _rival(costs: Costs, plan: Planned) -> Rival:
    """Return another planner's plan, by the same samples as the best one."""
    drawn = simulate(costs, plan.gpus)
    return Rival(
        gpus=plan.gpus,
        time_s=round(float(drawn.time_s.mean()), 6),
        cost=round(float(drawn.cost.mean()), 6),
    )


def _amount(samples: Floats) -> Amount:
    low, high = np.quantile(samples, [LOW, HIGH])
    return Amount(
        mean=round(float(samples.mean()), 6), low=round(float(low), 6), high=round(float(high), 6)
    )


def soonest(request: PlanRequest) -> tuple[float, float]:
    """Return how soon the study can end at all, and the least cost of that."""
    costs = request.costs
    quickest = fastest(costs, request.most)
    best = exact(costs, quickest.time_s * (1.0 + 1e-9), request.most) or quickest
    return best.time_s, best.cost


def is_for(plan: StudyPlan, stages: tuple[RungStage, ...]) -> bool:
    """Return whether a plan was made for these stages."""
    return stages == tuple(
        RungStage(bracket=s.bracket, budget=s.budget, trials=s.trials, units=s.units)
        for s in plan.stages
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A rule under a plan: it stops and promotes as the rule of the study does.

    The plan decides how many trials train at once and on how many nodes each.
    """

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
