"""The cheapest plan that is in time.

Plans are built stage by stage as labels of time, cost and instances. A label is dropped if another
one with the same instances is no later and no dearer, or if what is surely still to be paid
(``grid``) makes it dearer than a plan that is known. What is left of them at the end is optimal. If
there are too many, the known plan is the answer, with the grid's lower bound beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bftrainer.study.plan.draws import Floats
from bftrainer.study.plan.greedy import Reading, descend, greedy
from bftrainer.study.plan.grid import Grid, grid
from bftrainer.study.plan.naive import naive
from bftrainer.study.plan.options import Option, options_of
from bftrainer.study.plan.stage_cost import Costs, Planned
from bftrainer.study.plan.static import static

Ints = npt.NDArray[np.int64]
MOST_LABELS = 20_000
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
    known = _known(costs, options, deadline_s, most)
    lower = grid(costs, options, deadline_s, rounds_up=False)
    bound = float(lower.rest(0, 0, np.array([deadline_s]))[0])
    if math.isinf(bound):
        return None
    search = _Search(costs, deadline_s, lower, math.inf if known is None else _compared(known))
    found = search.run(options)
    if found is not None:
        plan, bound = found
        known = None if plan is None else costs.predict(plan)
    if known is not None and costs.cloud.minimum_s > 0.0:
        known = _cheapest(costs, deadline_s, most, known)
    return None if known is None else replace(known, bound=bound)


def fastest(costs: Costs, most: int) -> Planned:
    """Return the plan that ends first: all that there may be, from the first stage to the last."""
    return costs.predict((most,) * len(costs.experiment))


def _cheapest(costs: Costs, deadline_s: float, most: int, found: Planned) -> Planned:
    """Return the cheapest of what the planners find, as labels do not know the minimum charge."""
    others = [
        static(costs, deadline_s, most),
        naive(costs, deadline_s, most),
        *(greedy(costs, deadline_s, most, reading) for reading in Reading),
        descend(costs, deadline_s, found, Reading.REPAIRED),
    ]
    return min([found, *(one for one in others if one is not None)], key=lambda plan: plan.cost)


def _compared(plan: Planned) -> float:
    """Cost without the minimum charge, which labels do not know."""
    return sum(stage.cost for stage in plan.stages)


def _known(
    costs: Costs, options: Sequence[Sequence[Option]], deadline_s: float, most: int
) -> Planned | None:
    """Return a good plan that is in time: the walk through the grid that is rounded up."""
    upper = grid(costs, options, deadline_s, rounds_up=True)
    left_s, before = deadline_s, 0
    plan: list[int] = []
    for index, of in enumerate(options):
        taken = [costs.stage(index, one.gpus, before) for one in of]
        rest = upper.rest(
            index + 1,
            np.array([one.instances for one in of]),
            np.array([left_s - one.time_s for one in taken]),
        )
        best = int(np.argmin(rest + np.array([one.cost for one in taken])))
        if math.isinf(rest[best]):  # too tight for whole bins
            quick = fastest(costs, most)
            return quick if quick.time_s <= deadline_s + SLACK else None
        plan.append(of[best].gpus)
        left_s, before = left_s - taken[best].time_s, of[best].instances
    return costs.predict(tuple(plan))


@dataclass(frozen=True, slots=True)
class _Labels:
    """Beginnings of plans."""

    time_s: Floats
    cost: Floats
    instances: Ints
    came: Ints  # from which label of the stage before
    gpus: Ints


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for the optimum, given a bound of what is to come and the cost of a plan."""

    costs: Costs
    deadline_s: float
    lower: Grid
    known: float

    def run(
        self, options: Sequence[Sequence[Option]]
    ) -> tuple[tuple[int, ...] | None, float] | None:
        """Return the best plan and its cost without a minimum charge; None: too many labels."""
        zero = np.zeros(1, np.int64)
        labels = _Labels(np.zeros(1), np.zeros(1), zero, zero, zero)
        past: list[_Labels] = []
        for index, of in enumerate(options):
            parts: list[_Labels] = []
            for one in of:
                parts += self._with(labels, index, one)
            count = sum(len(part.cost) for part in parts)
            if count == 0:
                return None, math.inf
            if count > MOST_LABELS:
                return None
            labels = _joined(parts, alike=self.costs.cloud.is_free_to_grow)
            past.append(labels)
        cost = float(labels.cost.min())
        cheapest = np.flatnonzero(labels.cost <= cost * (1.0 + SLACK))
        at = int(cheapest[np.argmin(labels.time_s[cheapest])])
        plan: list[int] = []
        for stage in reversed(past):
            plan.append(int(stage.gpus[at]))
            at = int(stage.came[at])
        return tuple(reversed(plan)), cost

    def _with(self, labels: _Labels, index: int, one: Option) -> list[_Labels]:
        """Add an allocation to all labels, and keep those that may become the best."""
        grow_s, paid = self._growth(index, one, labels.instances)
        time_s = labels.time_s + grow_s + one.length_s
        cost = labels.cost + paid + one.cost
        rest = self.lower.rest(index + 1, one.instances, self.deadline_s - time_s)
        kept = np.flatnonzero((cost + rest <= self.known * (1.0 + SLACK)) & (rest < np.inf))
        if not len(kept):
            return []
        front = kept[_front(time_s[kept], cost[kept])]
        alike = np.full(len(front), 1, np.int64)
        return [_Labels(time_s[front], cost[front], alike * one.instances, front, alike * one.gpus)]

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
