"""The cheapest plan that is in time, by choices and bounds of each stage. Pure.

If a second costs ``price`` beside what is rented, the cheapest way from a stage to the end is a
shortest path over instances, and its cost less ``price`` times the seconds left is below that of
every plan that is in time (Lagrangian relaxation of the deadline; Handler and Zang 1980). The best
of many prices is the bound. The path itself is a plan: the cheapest one that is in time is a good
one to begin with.

Instances matter only whether a stage needs more of them or not, and what growing costs is linear
in both numbers: a stage takes two running minima over instances.

Plans are built stage by stage as labels of time, cost and instances. A label is dropped if another
one with the same instances is no later and no dearer, or if what is surely still to be paid
(``bound``) makes it dearer than a plan that is known. What is left of them at the end is optimal.
If there are too many, the most promising go on: the bound then says how good the plan is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bftrainer.study.plan.problem import Billing
from bftrainer.study.plan.stage_cost import Costs, Floats, Planned

Ints = npt.NDArray[np.int64]
PRICES = 200
RANGE = 1e4  # of the prices above zero
DOUBLINGS = 60  # of the price, until the deadline holds
HALVINGS = 40  # of the interval in which the right price is
MOST_LABELS = 5_000
SLACK = 1e-9  # of seconds, and of costs as a share


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An allocation of a stage."""

    gpus: int
    instances: int
    length_s: float
    cost: float  # of the training; that of growing depends on the stage before


def options_of(costs: Costs, index: int, most: int) -> tuple[Option, ...]:
    """Return all that an optimal plan can need, in order of their instances.

    If growing is free, instances that make a stage no faster are of no use; else they may be kept
    for a later one.
    """
    useful: list[Option] = []
    fastest_s = float("inf")
    for instances in range(1, costs.cloud.instances(most) + 1):
        sizes = _gpus(costs, index, instances, most)
        options = _undominated(_option(costs, index, gpus) for gpus in sizes)
        if costs.cloud.is_free_to_grow:
            options = [option for option in options if option.length_s < fastest_s]
        useful += options
        for option in options:
            fastest_s = min(fastest_s, option.length_s)
    return tuple(useful)


def _gpus(costs: Costs, index: int, instances: int, most: int) -> Iterable[int]:
    """Name the GPUs with which a stage has so many instances, of those that are alike the least."""
    cloud = costs.cloud
    low = (instances - 1) * cloud.gpus_per_instance + 1
    high = min(most, instances * cloud.gpus_per_instance)
    if costs.scaling.spread > 0.0 and low < costs.experiment[index].trials * costs.scaling.n_min:
        return range(low, high + 1)  # who follows whom on a GPU makes a difference
    if cloud.billing is Billing.INSTANCE:  # the more, the faster, for the same money
        return (_least_alike(costs, index, low, high),)
    return sorted({_least_alike(costs, index, low, gpus) for gpus in range(low, high + 1)})


def _least_alike(costs: Costs, index: int, low: int, gpus: int) -> int:
    """Return the least GPUs, from ``low`` on, with the share and the rounds of ``gpus``."""
    trials = costs.experiment[index].trials
    gpus_per_trial, at_once = costs.share(index, gpus)
    if 0 < at_once < trials:
        rounds = -(-trials // at_once)
        at_once = -(-trials // rounds)
    return max(low, gpus_per_trial * at_once)


def _option(costs: Costs, index: int, gpus: int) -> Option:
    length_s, gpu_s = costs.run(index, gpus)
    cloud = costs.cloud
    instances = cloud.instances(gpus)
    paid_s = instances * length_s
    if cloud.billing is Billing.FUNCTION:
        paid_s = gpu_s / cloud.gpus_per_instance
    return Option(gpus=gpus, instances=instances, length_s=length_s, cost=paid_s * cloud.price_s)


def _undominated(options: Iterable[Option]) -> Sequence[Option]:
    """Return the options of finite length that no other one beats in time and cost."""
    front: list[Option] = []
    for option in sorted(options, key=lambda option: (option.length_s, option.cost)):
        if option.length_s < math.inf and (not front or option.cost < front[-1].cost):
            front.append(option)
    return front


class Relaxation:
    """The options of a study's stages, where a second costs a price instead of ending in time."""

    def __init__(self, costs: Costs, options: Sequence[Sequence[Option]]) -> None:
        cloud = costs.cloud
        self._costs, self._options = costs, options
        self._grow_s = costs.grow_s(1)  # the same for any number of new instances
        new_cost = cloud.init_s * cloud.price_s + cloud.data_price
        # Who pays by functions pays for no instance that waits until the new ones are there.
        wait_cost = 0.0
        if cloud.billing is not Billing.FUNCTION:
            wait_cost = self._grow_s * cloud.price_s
        # Growing costs the first x (instances of the stage) + the second x (instances before).
        self._each_new, self._each_old = new_cost, wait_cost - new_cost
        # One array for each stage, with an entry for each of its options.
        self._instances: list[Ints] = []
        self._length_s: list[Floats] = []
        self._cost: list[Floats] = []
        for stage in options:
            self._instances.append(np.array([option.instances for option in stage]))
            self._length_s.append(np.array([option.length_s for option in stage]))
            self._cost.append(np.array([option.cost for option in stage]))

    def to_pay(self, price: float, weight: float = 1.0) -> tuple[Floats, ...]:
        """Return the least of weight x cost + price x time from each stage to the end.

        By the instances before the stage; one more than stages, the last is 0.
        """
        rows = 1 + max(int(instances.max()) for instances in self._instances)
        count = np.arange(rows)
        grow_to = weight * self._each_new * count + price * self._grow_s
        grow_from = weight * self._each_old * count
        tables = [np.zeros(rows)]
        for stage in reversed(range(len(self._cost))):
            instances = self._instances[stage]
            option_cost = weight * self._cost[stage] + price * self._length_s[stage]
            option_cost = option_cost + tables[-1][instances]
            stay = np.full(rows, np.inf)
            np.minimum.at(stay, instances, option_cost)
            # Fewer or as many instances cost nothing to go to, more of them do.
            table = np.minimum.accumulate(stay)
            above = np.minimum.accumulate((stay + grow_to)[::-1])[::-1]
            table[:-1] = np.minimum(table[:-1], above[1:] + grow_from[:-1])
            tables.append(table)
        return tuple(reversed(tables))

    def plan(self, price: float, weight: float = 1.0) -> Planned:
        """Return the plan that takes the way of ``to_pay``."""
        tables = self.to_pay(price, weight)
        before = 0
        plan: list[int] = []
        for stage, instances in enumerate(self._instances):
            option_cost = weight * self._cost[stage] + price * self._length_s[stage]
            option_cost = option_cost + tables[stage + 1][instances]
            growth = weight * (self._each_new * instances + self._each_old * before)
            growth = growth + price * self._grow_s
            best = int(np.argmin(option_cost + np.where(instances > before, growth, 0.0)))
            plan.append(self._options[stage][best].gpus)
            before = int(instances[best])
        return self._costs.predict(tuple(plan))

    def right_price(self, deadline_s: float) -> tuple[float, Planned | None]:
        """Return the least price at which its plan is in time, and the best plan on the way."""
        cheapest: Planned | None = None

        def is_in_time(price: float) -> bool:
            nonlocal cheapest
            plan = self.plan(price)
            if plan.time_s > deadline_s + 1e-9:
                return False
            if cheapest is None or plan.cost < cheapest.cost:
                cheapest = plan
            return True

        low, high = 0.0, self._costs.cloud.price_s
        for _ in range(DOUBLINGS):
            if is_in_time(high):
                break
            high *= 2.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            if is_in_time(middle):
                high = middle
            else:
                low = middle
        return high, cheapest


class Bound:
    """Bounds for all stages, instances and times left, by many prices of a second."""

    def __init__(self, relaxation: Relaxation, price: float, most_price_s: float) -> None:
        """Take prices around one, up to ``RANGE`` times the greater of both."""
        highest = RANGE * max(price, most_price_s)
        self._prices = np.unique([0.0, *np.geomspace(price / RANGE, highest, PRICES), price])
        by_price = [relaxation.to_pay(float(price)) for price in self._prices]
        # One more than stages: prices x instances, and by instances the time that it takes at all.
        self._to_pay = tuple(map(np.stack, zip(*by_price, strict=True)))
        self._least_s = relaxation.to_pay(1.0, weight=0.0)

    def rest(self, stage: int, instances: int, left_s: Floats) -> Floats:
        """Return what is to be paid from a stage on; infinite where it cannot be in time."""
        instances = min(instances, self._to_pay[stage].shape[1] - 1)
        to_pay = self._to_pay[stage][:, instances]
        # What is to be paid is concave in the price: the best price falls with the time left.
        worth_s = np.diff(to_pay) / np.diff(self._prices)
        best = np.searchsorted(-worth_s, -left_s)
        bound = np.maximum(to_pay[best] - self._prices[best] * left_s, 0.0)
        return np.where(left_s < self._least_s[stage][instances] - 1e-9, np.inf, bound)


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
    options = _options_of_stages(costs, most)
    if not all(options):  # too few GPUs for a trial
        return None
    relaxation = Relaxation(costs, options)
    price, best = relaxation.right_price(deadline_s)
    lower = Bound(relaxation, price, costs.cloud.price_s)
    bound = float(lower.rest(0, 0, np.array([deadline_s]))[0])
    if math.isinf(bound):
        return None
    cost_to_beat = math.inf if best is None else _cost_of_stages(best)
    search = _Search(costs, deadline_s, lower, cost_to_beat)
    gpus, is_whole = search.run(options)
    if gpus is not None:
        plan = costs.predict(gpus)
        if is_whole:
            bound = _cost_of_stages(plan)
        if best is None or plan.cost < best.cost:
            best = plan
    if best is None:
        return None
    return replace(best, bound=min(bound, best.cost))


def fastest(costs: Costs, most: int) -> Planned:
    """Return a plan that ends first, on at most so many GPUs, of which each trial needs n_min."""
    return Relaxation(costs, _options_of_stages(costs, most)).plan(1.0, weight=0.0)


def _options_of_stages(costs: Costs, most: int) -> list[tuple[Option, ...]]:
    return [options_of(costs, index, most) for index in range(len(costs.experiment))]


def _cost_of_stages(plan: Planned) -> float:
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

    def at(self, places: Ints) -> _Labels:
        """Return the labels at some places."""
        return _Labels(
            self.time_s[places],
            self.cost[places],
            self.in_all[places],
            self.instances[places],
            self.came[places],
            self.gpus[places],
        )


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for the optimum, given a bound of what is to come and the cost of a plan."""

    costs: Costs
    deadline_s: float
    lower: Bound
    cost_to_beat: float

    def run(self, options: Sequence[Sequence[Option]]) -> tuple[tuple[int, ...] | None, bool]:
        """Return the best plan, and whether no label was left out for want of room."""
        zero = np.zeros(1, np.int64)
        labels = _Labels(np.zeros(1), np.zeros(1), np.zeros(1), zero, zero, zero)
        past: list[_Labels] = []
        is_whole = True
        for index, stage_options in enumerate(options):
            parts: list[_Labels] = []
            for option in stage_options:
                parts += self._with(labels, index, option)
            if not parts:
                return None, is_whole
            labels = _join(parts)
            if self.costs.cloud.is_free_to_grow:  # instances do not matter: the best of all remain
                labels = labels.at(_front(labels.time_s, labels.cost))
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

    def _with(self, labels: _Labels, index: int, option: Option) -> list[_Labels]:
        """Add an allocation to all labels, and keep those that may become the best."""
        grow_s, paid = self._growth(index, option, labels.instances)
        time_s = labels.time_s + grow_s + option.length_s
        cost = labels.cost + paid + option.cost
        to_come = self.lower.rest(index + 1, option.instances, self.deadline_s - time_s)
        in_all = cost + to_come
        is_promising = (in_all <= self.cost_to_beat * (1.0 + SLACK)) & (to_come < np.inf)
        promising = np.flatnonzero(is_promising)
        if not len(promising):
            return []
        front = promising[_front(time_s[promising], cost[promising])]
        instances = np.full(len(front), option.instances, np.int64)
        gpus = np.full(len(front), option.gpus, np.int64)
        return [_Labels(time_s[front], cost[front], in_all[front], instances, front, gpus)]

    def _growth(self, index: int, option: Option, before: Ints) -> tuple[Floats, Floats]:
        """Time and cost of growing to an allocation, by the instances before."""
        if self.costs.cloud.is_free_to_grow:
            return np.zeros(len(before)), np.zeros(len(before))
        # Many labels have the same instances: the stage is computed once for each number of them.
        counts, places = np.unique(before, return_inverse=True)
        stages = [self.costs.stage(index, option.gpus, int(count)) for count in counts]
        grow_s = np.array([stage.grow_s for stage in stages])
        paid = np.array([stage.cost for stage in stages]) - option.cost
        return grow_s[places], paid[places]


def _front(time_s: Floats, cost: Floats) -> Ints:
    """Return the labels that no other one beats in both, in order of time."""
    order = np.lexsort((cost, time_s))
    sorted_cost = cost[order]
    cheapest = np.minimum.accumulate(sorted_cost)
    is_new = np.ones(len(order), bool)
    is_new[1:] = sorted_cost[1:] < cheapest[:-1] - SLACK * np.abs(cheapest[:-1])
    return order[is_new]


def _join(parts: Sequence[_Labels]) -> _Labels:
    """Put labels together."""

    def column(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    return _Labels(*map(column, _Labels.__slots__))


def _promising(labels: _Labels) -> _Labels:
    """Return as many labels as there is room for."""
    return labels.at(np.argpartition(labels.in_all, MOST_LABELS)[:MOST_LABELS])
