"""A study's plan as a document: what ``study plan`` prints and ``study run --plan`` carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bftrainer.study.plan.cloud import Cloud
from bftrainer.study.plan.dag import Drawn, simulate
from bftrainer.study.plan.draws import Floats
from bftrainer.study.plan.exact import exact
from bftrainer.study.plan.greedy import Reading, greedy
from bftrainer.study.plan.naive import naive
from bftrainer.study.plan.scaling import Scaling
from bftrainer.study.plan.stage_cost import Costs, Planned
from bftrainer.study.plan.staging import RungStage, experiment_of
from bftrainer.study.plan.static import static

NAME: Final = "study-plan"  # of the document
LOW, HIGH = 0.1, 0.9  # quantiles that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A time or a cost: its mean, and between what four samples of five are."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """What one rung of the study has."""

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
    in_time: float  # share of the samples that end by the deadline
    time_s: Amount
    cost: Amount
    bound: float  # no plan that is in time costs less
    stages: tuple[PlannedStage, ...]
    rivals: Mapping[str, Rival | None]  # planner -> its plan; None: it has none that is in time
    scaling: Scaling
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
    """What is to be planned."""

    study: str
    unit: str
    rule: Mapping[str, Any]
    stages: tuple[RungStage, ...]
    deadline_s: float
    most: int  # GPUs at once
    scaling: Scaling
    cloud: Cloud
    samples: int
    seed: int = 0

    @property
    def costs(self) -> Costs:
        """Costs of all plans."""
        return Costs(experiment_of(self.stages), self.scaling, self.cloud, self.samples, self.seed)


def plan_study(request: PlanRequest) -> StudyPlan | None:
    """Return the plan; None: none is in time."""
    costs = request.costs
    best = exact(costs, request.deadline_s, request.most)
    if best is None or best.bound is None:
        return None
    drawn = simulate(costs, best.gpus)
    return StudyPlan(
        study=request.study,
        unit=request.unit,
        rule=request.rule,
        deadline_s=request.deadline_s,
        in_time=float(np.mean(drawn.time_s <= request.deadline_s * (1.0 + 1e-9))),
        time_s=_amount(drawn.time_s),
        cost=_amount(drawn.cost),
        bound=best.bound,
        stages=_stages(request, costs, best, drawn),
        rivals=_rivals(request, costs),
        scaling=request.scaling,
        cloud=request.cloud,
    )


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


def _rivals(request: PlanRequest, costs: Costs) -> dict[str, Rival | None]:
    deadline_s, most = request.deadline_s, request.most
    found = {
        "static": static(costs, deadline_s, most),
        "naive": naive(costs, deadline_s, most),
        **{
            f"greedy-{reading.value}": greedy(costs, deadline_s, most, reading)
            for reading in Reading
        },
    }
    return {
        name: None if plan is None else Rival(gpus=plan.gpus, time_s=plan.time_s, cost=plan.cost)
        for name, plan in found.items()
    }


def _amount(samples: Floats) -> Amount:
    low, high = np.quantile(samples, [LOW, HIGH])
    return Amount(
        mean=round(float(samples.mean()), 6), low=round(float(low), 6), high=round(float(high), 6)
    )


def soonest(request: PlanRequest) -> tuple[float, float]:
    """Return how soon the study can end at all, and the least cost of that."""
    costs = request.costs
    quickest = costs.predict((request.most,) * len(request.stages))
    best = exact(costs, quickest.time_s * (1.0 + 1e-9), request.most) or quickest
    return best.time_s, best.cost


def is_for(plan: StudyPlan, stages: tuple[RungStage, ...]) -> bool:
    """Whether a plan was made for these stages."""
    return stages == tuple(
        RungStage(bracket=s.bracket, budget=s.budget, trials=s.trials, units=s.units)
        for s in plan.stages
    )
