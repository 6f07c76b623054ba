"""The paper's planner, its Algorithm 2 (section 4.3): from a static plan down, greedily.

Read literally, a step goes to the next allocation that the trials can share equally, and the
search ends when the best step is late. As instances are paid whole, many such steps free none,
bring nothing, and the search ends at once. The repaired one goes down until an instance is free,
and passes over steps that are late.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from bftrainer.study.plan.stage_cost import Costs, Planned
from bftrainer.study.plan.static import static

LEAST_GAIN = 1e-9
STARTS = (1, 2, 3)  # times the static optimum


class Reading(enum.StrEnum):
    """How Algorithm 2 is read."""

    LITERAL = "literal"
    REPAIRED = "repaired"


def greedy(
    costs: Costs, deadline_s: float, most: int, reading: Reading, starts: Sequence[int] = STARTS
) -> Planned | None:
    """Return the best plan from several multiples of the static optimum; None: all are late.

    No stage has more than ``most`` GPUs.
    """
    base = static(costs, deadline_s, most)
    if base is None:
        return None
    found = [base]
    for times in starts:
        start = costs.predict(tuple(min(most, times * gpus) for gpus in base.gpus))
        if start.time_s <= deadline_s:
            found.append(descend(costs, deadline_s, start, reading))
    return min(found, key=lambda plan: plan.cost)


def descend(costs: Costs, deadline_s: float, start: Planned, reading: Reading) -> Planned:
    """Take the step that saves most for the time it adds, as long as there is one."""
    best = start
    while True:
        following: Planned | None = None
        most_gain = 0.0
        for index, gpus in enumerate(best.gpus):
            less = step_down(costs, index, gpus, reading)
            if less is None:
                continue
            plan = costs.predict((*best.gpus[:index], less, *best.gpus[index + 1 :]))
            saved, added_s = best.cost - plan.cost, plan.time_s - best.time_s
            if saved < LEAST_GAIN or (reading is Reading.REPAIRED and plan.time_s > deadline_s):
                continue
            gain = saved / added_s if added_s > 1e-12 else math.inf
            if following is None or gain > most_gain:
                following, most_gain = plan, gain
        if following is None or following.time_s > deadline_s:
            return best
        best = following


def step_down(costs: Costs, index: int, gpus: int, reading: Reading) -> int | None:
    """Return the next fewer GPUs that are a factor or a multiple of the trials; None: none.

    A trial that needs several counts these as one.
    """
    trials, n_min = costs.experiment[index].trials, costs.scaling.n_min
    instances = costs.cloud.instances
    for less in range(gpus - 1, n_min - 1, -1):
        at_once, odd = divmod(less, n_min)
        is_fair = less % trials == 0 if at_once >= trials else odd == 0 and trials % at_once == 0
        if is_fair and (reading is Reading.LITERAL or instances(less) < instances(gpus)):
            return less
    return None
