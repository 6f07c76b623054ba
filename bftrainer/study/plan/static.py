"""The cheapest fixed cluster that is in time (section 3.2 of the paper): the usual baseline."""

from __future__ import annotations

from bftrainer.study.plan.stage_cost import Costs, Planned


def static(costs: Costs, deadline_s: float, most: int) -> Planned | None:
    """Return the cheapest plan with the same instances in all stages; None: none is in time."""
    best: Planned | None = None
    step = costs.cloud.gpus_per_instance
    for gpus in range(step, most + 1, step):
        plan = costs.predict((gpus,) * len(costs.experiment))
        if plan.time_s <= deadline_s and (best is None or plan.cost < best.cost):
            best = plan
    return best
