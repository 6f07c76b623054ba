"""The cheapest plan that is in time.

Plans are built stage by stage as labels of time, cost and instances. A label is dropped if another
one with the same instances is no later and no dearer, or if what is surely still to be paid
(``bound``) makes it dearer than a plan that is known. What is left of them at the end is optimal.
If there are too many, the most promising go on: the bound then says how good the plan is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bftrainer.study.plan.bound import Bound, Ints, Option, arrays_of, options_of, relaxed
from bftrainer.study.plan.stage_cost import Costs, Floats, Planned

MOST_LABELS = 5_000
SLACK = 1e-9  # of seconds, and of costs as a share


def exact(costs: Costs, deadline_s: float, most: int) -> Planned | None:
    """Return the cheapest plan that ends in time on the average, and a bound of all such plans.

    The bound equals the cost, or is less if there is a minimum charge, of which it knows nothing,
    or if there were too many labels.

    Args:
        costs: of the study.
        deadline_s: for the whole study.
        most: GPUs at most.

    Returns:
        None: no plan is in time.
    """
    if deadline_s <= 0.0:
        return None
    options = [options_of(costs, i, most) for i in range(len(costs.experiment))]
    if not all(options):  # too few GPUs for a trial
        return None
    lower, known = relaxed(costs, options, deadline_s)
    bound = float(lower.rest(0, 0, np.array([deadline_s]))[0])
    if math.isinf(bound):
        return None
    search = _Search(costs, deadline_s, lower, math.inf if known is None else _compared(known))
    plan, is_whole = search.run(options)
    if plan is not None:
        found = costs.predict(plan)
        bound = _compared(found) if is_whole else bound
        known = found if known is None or found.cost < known.cost else known
    return None if known is None else replace(known, bound=min(bound, known.cost))


def fastest(costs: Costs, most: int) -> Planned:
    """Return a plan that ends first, on at most so many GPUs, of which each trial needs n_min."""
    options = [options_of(costs, i, most) for i in range(len(costs.experiment))]
    chosen = zip(options, arrays_of(costs, options).path(1.0, weight=0.0), strict=True)
    return costs.predict(tuple(of[one].gpus for of, one in chosen))


def _compared(plan: Planned) -> float:
    """Cost without the minimum charge, which labels do not know."""
    return sum(stage.cost for stage in plan.stages)


@dataclass(frozen=True, slots=True)
class _Labels:
    """Beginnings of plans."""

    time_s: Floats
    cost: Floats
    in_all: Floats  # cost with the bound of what is to come
    instances: Ints
    came: Ints  # from which label of the stage before
    gpus: Ints


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for the optimum, given a bound of what is to come and the cost of a plan."""

    costs: Costs
    deadline_s: float
    lower: Bound
    known: float

    def run(self, options: Sequence[Sequence[Option]]) -> tuple[tuple[int, ...] | None, bool]:
        """Return the best plan, and whether no label was left out for want of room."""
        zero = np.zeros(1, np.int64)
        labels = _Labels(np.zeros(1), np.zeros(1), np.zeros(1), zero, zero, zero)
        past: list[_Labels] = []
        is_whole = True
        for index, of in enumerate(options):
            parts: list[_Labels] = []
            for one in of:
                parts += self._with(labels, index, one)
            if not parts:
                return None, is_whole
            labels = _joined(parts, alike=self.costs.cloud.is_free_to_grow)
            if len(labels.cost) > MOST_LABELS:
                labels, is_whole = _promising(labels), False
            past.append(labels)
        cost = float(labels.cost.min())
        cheapest = np.flatnonzero(labels.cost <= cost * (1.0 + SLACK))
        at = int(cheapest[np.argmin(labels.time_s[cheapest])])
        plan: list[int] = []
        for stage in reversed(past):
            plan.append(int(stage.gpus[at]))
            at = int(stage.came[at])
        return tuple(reversed(plan)), is_whole

    def _with(self, labels: _Labels, index: int, one: Option) -> list[_Labels]:
        """Add an allocation to all labels, and keep those that may become the best."""
        grow_s, paid = self._growth(index, one, labels.instances)
        time_s = labels.time_s + grow_s + one.length_s
        cost = labels.cost + paid + one.cost
        rest = self.lower.rest(index + 1, one.instances, self.deadline_s - time_s)
        in_all = cost + rest
        kept = np.flatnonzero((in_all <= self.known * (1.0 + SLACK)) & (rest < np.inf))
        if not len(kept):
            return []
        front = kept[_front(time_s[kept], cost[kept])]
        alike = np.full(len(front), 1, np.int64)
        instances, gpus = alike * one.instances, alike * one.gpus
        return [_Labels(time_s[front], cost[front], in_all[front], instances, front, gpus)]

    def _growth(self, index: int, one: Option, before: Ints) -> tuple[Floats, Floats]:
        """Time and cost of growing to an allocation, by the instances before."""
        if self.costs.cloud.is_free_to_grow:
            return np.zeros(len(before)), np.zeros(len(before))
        kinds, which = np.unique(before, return_inverse=True)
        stages = [self.costs.stage(index, one.gpus, int(kind)) for kind in kinds]
        grow_s = np.array([stage.grow_s for stage in stages])
        paid = np.array([stage.cost for stage in stages]) - one.cost
        return grow_s[which], paid[which]


def _front(time_s: Floats, cost: Floats) -> Ints:
    """Return the labels that no other one beats in both, in order of time."""
    order = np.lexsort((cost, time_s))
    sorted_cost = cost[order]
    cheapest = np.minimum.accumulate(sorted_cost)
    is_new = np.ones(len(order), bool)
    is_new[1:] = sorted_cost[1:] < cheapest[:-1] - SLACK * np.abs(cheapest[:-1])
    return order[is_new]


def _joined(parts: Sequence[_Labels], *, alike: bool) -> _Labels:
    """Put labels together; if instances do not matter, only the best of all remain."""
    names = _Labels.__slots__
    joined = _Labels(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))
    if not alike:
        return joined
    front = _front(joined.time_s, joined.cost)
    return _Labels(*(getattr(joined, name)[front] for name in names))


def _promising(labels: _Labels) -> _Labels:
    """Return as many labels as there is room for."""
    kept = np.argpartition(labels.in_all, MOST_LABELS)[:MOST_LABELS]
    return _Labels(*(getattr(labels, name)[kept] for name in _Labels.__slots__))
