"""Naive elasticity (section 6.3 of the paper): every trial has the same GPUs for life."""

from __future__ import annotations

from bftrainer.study.plan.stage_cost import Costs, Planned


def naive(costs: Costs, deadline_s: float, most: int) -> Planned | None:
    """Return the cheapest plan in which the cluster shrinks with the trials; None: all are late."""
    best: Planned | None = None
    trials = [stage.trials for stage in costs.experiment]
    limit = min(most // max(trials), costs.scaling.n_max or most)
    for each in range(costs.scaling.n_min, limit + 1):
        plan = costs.predict(tuple(each * count for count in trials))
        if plan.time_s <= deadline_s and (best is None or plan.cost < best.cost):
            best = plan
    return best
