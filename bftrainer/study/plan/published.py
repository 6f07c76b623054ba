"""The published planners: RubberBand's (Algorithm 2), naive elasticity, a fixed cluster. Pure.

In the literal reading of Algorithm 2 a step goes to the next allocation that the trials can share
equally, and the search ends when the best step is late. As instances are paid whole, many such
steps free none, bring nothing, and the search ends at once. The repaired one goes down until an
instance is free, and passes over steps that are late.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

from bftrainer.study.plan.stage_cost import Costs, Planned, StageCost

LEAST_GAIN = 1e-9
STARTS = (1, 2, 3)  # times the static optimum


def static(costs: Costs, deadline_s: float, most: int) -> Planned | None:
    """Return the cheapest plan with the same instances in all stages; None: none is in time."""
    best: Planned | None = None
    step = costs.cloud.gpus_per_instance
    for gpus in range(step, most + 1, step):
        plan = costs.predict((gpus,) * len(costs.experiment))
        if plan.time_s <= deadline_s and (best is None or plan.cost < best.cost):
            best = plan
    return best


class Algorithm2Reading(enum.StrEnum):
    """The two readings of Algorithm 2."""

    LITERAL = "literal"
    REPAIRED = "repaired"


class GpuCut(NamedTuple):
    """Fewer GPUs for one stage, and how long the plan then takes."""

    stage: int
    gpus: int
    plan_s: float


def greedy(
    costs: Costs,
    deadline_s: float,
    most: int,
    reading: Algorithm2Reading,
    starts: Sequence[int] = STARTS,
) -> Planned | None:
    """Return the best plan from several multiples of the static optimum; None: all are late.

    No stage has more than ``most`` GPUs.
    """
    base = static(costs, deadline_s, most)
    if base is None:
        return None
    plans = [base]
    for times in starts:
        start = costs.predict(tuple(min(most, times * gpus) for gpus in base.gpus))
        if start.time_s <= deadline_s:
            plans.append(descend(costs, deadline_s, start, reading))
    return min(plans, key=lambda plan: plan.cost)


def descend(costs: Costs, deadline_s: float, start: Planned, reading: Algorithm2Reading) -> Planned:
    """Take the step that saves most for the time it adds, as long as there is one."""
    best = start
    while True:
        best_cut: GpuCut | None = None
        best_gain = 0.0
        for index, gpus in enumerate(best.gpus):
            fewer = step_down(costs, index, gpus, reading)
            if fewer is None:
                continue
            time_s, cost = _time_and_cost(costs, best, index, fewer)
            saved, added_s = best.cost - cost, time_s - best.time_s
            if saved < LEAST_GAIN:
                continue
            if reading is Algorithm2Reading.REPAIRED and time_s > deadline_s:
                continue
            # A step that takes no time (or saves some) comes before all others.
            gain = saved / added_s if added_s > 1e-12 else math.inf
            if best_cut is None or gain > best_gain:
                best_cut, best_gain = GpuCut(index, fewer, time_s), gain
        if best_cut is None or best_cut.plan_s > deadline_s:
            return best
        best = costs.predict(_with(best, best_cut.stage, best_cut.gpus))


def _time_and_cost(costs: Costs, plan: Planned, index: int, gpus: int) -> tuple[float, float]:
    """Return time and cost of a plan with other GPUs in one stage: the next one may grow, too."""
    if costs.cloud.minimum_s > 0.0:
        whole = costs.predict(_with(plan, index, gpus))
        return whole.time_s, whole.cost
    stages = plan.stages[index : index + 2]
    before = plan.stages[index - 1].instances if index else 0
    changes = [costs.stage(index, gpus, before)]
    if len(stages) > 1:
        changes.append(costs.stage(index + 1, stages[1].gpus, changes[0].instances))
    time_s = plan.time_s + _time_s(changes) - _time_s(stages)
    return time_s, plan.cost + _cost(changes) - _cost(stages)


def _time_s(stages: Sequence[StageCost]) -> float:
    return sum(stage.time_s for stage in stages)


def _cost(stages: Sequence[StageCost]) -> float:
    return sum(stage.cost for stage in stages)


def _with(plan: Planned, index: int, gpus: int) -> tuple[int, ...]:
    return (*plan.gpus[:index], gpus, *plan.gpus[index + 1 :])


def step_down(costs: Costs, index: int, gpus: int, reading: Algorithm2Reading) -> int | None:
    """Return the next fewer GPUs that are a factor or a multiple of the trials; None: none.

    A trial that needs several counts these as one.
    """
    trials, n_min = costs.experiment[index].trials, costs.scaling.n_min
    instances = costs.cloud.instances
    for fewer in range(gpus - 1, n_min - 1, -1):
        at_once, odd = divmod(fewer, n_min)
        is_fair = odd == 0 and trials % at_once == 0
        if at_once >= trials:
            is_fair = fewer % trials == 0
        if is_fair and (reading is Algorithm2Reading.LITERAL or instances(fewer) < instances(gpus)):
            return fewer
    return None


def naive(costs: Costs, deadline_s: float, most: int) -> Planned | None:
    """Return the cheapest plan in which the cluster shrinks with the trials; None: all are late."""
    best: Planned | None = None
    trials = [stage.trials for stage in costs.experiment]
    limit = min(most // max(trials), costs.scaling.n_max or most)
    for gpus_per_trial in range(costs.scaling.n_min, limit + 1):
        plan = costs.predict(tuple(gpus_per_trial * count for count in trials))
        if plan.time_s <= deadline_s and (best is None or plan.cost < best.cost):
            best = plan
    return best
