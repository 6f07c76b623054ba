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
from bftrainer.study.trials import Start, StudyRule, StudyTrial, TrialStage, Verdicts

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

    @property
    def rung_stage(self) -> RungStage:
        """The stage of the rule."""
        return RungStage(
            bracket=self.bracket, budget=self.budget, trials=self.trials, units=self.units
        )


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
    exact_plan = exact(costs, request.deadline_s, request.most)
    if exact_plan is None or exact_plan.bound is None:
        return None
    rival_plans = _rivals(request, costs)
    candidates = [exact_plan]
    if exact_plan.cost > exact_plan.bound:
        candidates += [plan for plan in rival_plans.values() if plan is not None]
        candidates.append(
            descend(costs, request.deadline_s, exact_plan, Algorithm2Reading.REPAIRED)
        )
    best = min(candidates, key=lambda plan: plan.cost)
    rivals: dict[str, Rival | None] = {}
    for name, plan in rival_plans.items():
        rivals[name] = None if plan is None else _rival(costs, plan)
    samples = simulate(costs, best.gpus)
    return StudyPlan(
        study=request.study,
        unit=request.unit,
        rule=request.rule,
        deadline_s=request.deadline_s,
        in_time=_in_time(request, best),
        time_s=_amount(samples.time_s),
        cost=_amount(samples.cost),
        minimum_cost=round(float((samples.cost - samples.stage_cost.sum(0)).mean()), 6),
        bound=round(min(exact_plan.bound, float(samples.cost.mean())), 6),
        stages=_stages(request, costs, best, samples),
        rivals=rivals,
        scaling=request.scaling,
        cloud=request.cloud,
    )


def _in_time(request: PlanRequest, plan: Planned) -> float:
    """Return how often the plan is in time, on samples that it was not chosen by."""
    times_s: list[Floats] = []
    for offset in range(1, CHECKS + 1):
        costs = replace(request.costs, seed=request.seed + offset)
        times_s.append(simulate(costs, plan.gpus).time_s)
    latest_s = request.deadline_s * (1.0 + 1e-9)
    return float(np.mean(np.concatenate(times_s) <= latest_s))


def _stages(
    request: PlanRequest, costs: Costs, best: Planned, samples: Drawn
) -> tuple[PlannedStage, ...]:
    stages: list[PlannedStage] = []
    for index, (rung, stage_cost) in enumerate(zip(request.stages, best.stages, strict=True)):
        gpus_per_trial, at_once = costs.share(index, stage_cost.gpus)
        stages.append(
            PlannedStage(
                bracket=rung.bracket,
                budget=rung.budget,
                units=rung.units,
                trials=rung.trials,
                gpus=stage_cost.gpus,
                gpus_per_trial=gpus_per_trial,
                at_once=at_once,
                instances=stage_cost.instances,
                time_s=_amount(samples.stage_time_s[index]),
                cost=_amount(samples.stage_cost[index]),
            )
        )
    return tuple(stages)


def _rivals(request: PlanRequest, costs: Costs) -> dict[str, Planned | None]:
    deadline_s, most_gpus = request.deadline_s, request.most
    plans = {
        "static": static(costs, deadline_s, most_gpus),
        "naive": naive(costs, deadline_s, most_gpus),
    }
    for reading in Algorithm2Reading:
        plans[f"greedy-{reading.value}"] = greedy(costs, deadline_s, most_gpus, reading)
    return plans


def _rival(costs: Costs, plan: Planned) -> Rival:
    """Return another planner's plan, by the same samples as the best one."""
    samples = simulate(costs, plan.gpus)
    return Rival(
        gpus=plan.gpus,
        time_s=round(float(samples.time_s.mean()), 6),
        cost=round(float(samples.cost.mean()), 6),
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
    return stages == tuple(stage.rung_stage for stage in plan.stages)


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
        active = [trial for trial in trials if trial.stage is TrialStage.ACTIVE]
        active_stages = [self._stage(trial.bracket, trial.budget) for trial in active]
        # The rule is asked as if there were room for all: the plan, not the rule, limits them.
        no_limit = len(trials) + sum(stage.trials for stage in self.plan.stages)
        verdicts = self.rule.verdicts(trials, no_limit)
        grow_stages: dict[int, int] = {}  # trial -> stage
        for number, budget in verdicts.grow.items():
            grow_stages[number] = self._stage(by_number[number].bracket, budget)
        start_stages = [self._stage(start.bracket, start.budget) for start in verdicts.start]
        present = min([*active_stages, *grow_stages.values(), *start_stages], default=0)
        stage = self.plan.stages[present]
        room_left = max(0, min(room, stage.at_once - len(active)))
        growing = [number for number, index in grow_stages.items() if index == present][:room_left]
        starting: list[Start] = []
        for start, index in zip(verdicts.start, start_stages, strict=True):
            if index == present and len(growing) + len(starting) < room_left:
                starting.append(replace(start, nodes=stage.gpus_per_trial))
        return replace(
            verdicts,
            grow={number: verdicts.grow[number] for number in growing},
            nodes=dict.fromkeys(growing, stage.gpus_per_trial),
            start=tuple(starting),
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
        last = 0
        for index, stage in enumerate(self.plan.stages):
            if (stage.bracket, stage.budget) <= (bracket, budget):
                last = index
        return last
