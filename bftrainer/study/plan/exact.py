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

import numpy as np
import numpy.typing as npt

from bftrainer.study.plan.problem import Billing
from bftrainer.study.plan.stage_cost import Costs, Floats, Planned


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
    found: list[Option] = []
    fastest_s = float("inf")
    for instances in range(1, costs.cloud.instances(most) + 1):
        options = _undominated(
            _of(costs, index, gpus) for gpus in _gpus(costs, index, instances, most)
        )
        if costs.cloud.is_free_to_grow:
            options = [one for one in options if one.length_s < fastest_s]
        found += options
        fastest_s = min([fastest_s, *(one.length_s for one in options)])
    return tuple(found)


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
    each, at_once = costs.share(index, gpus)
    if 0 < at_once < trials:
        rounds = -(-trials // at_once)
        at_once = -(-trials // rounds)
    return max(low, each * at_once)


def _of(costs: Costs, index: int, gpus: int) -> Option:
    length_s, gpu_s = costs.run(index, gpus)
    cloud = costs.cloud
    instances = cloud.instances(gpus)
    paid_s = (
        gpu_s / cloud.gpus_per_instance
        if cloud.billing is Billing.FUNCTION
        else instances * length_s
    )
    return Option(gpus=gpus, instances=instances, length_s=length_s, cost=paid_s * cloud.price_s)


def _undominated(options: Iterable[Option]) -> Sequence[Option]:
    kept: list[Option] = []
    for one in sorted(options, key=lambda o: (o.length_s, o.cost)):
        if one.length_s < math.inf and (not kept or one.cost < kept[-1].cost):
            kept.append(one)
    return kept


Ints = npt.NDArray[np.int64]
PRICES = 200
RANGE = 1e4  # of the prices above zero
DOUBLINGS = 60  # of the price, until the deadline holds
HALVINGS = 40  # of the interval in which the right price is


class Relaxation:
    """The options of a study's stages, where a second costs a price instead of ending in time."""

    def __init__(self, costs: Costs, options: Sequence[Sequence[Option]]) -> None:
        cloud, self._grow_s = costs.cloud, costs.grow_s(1)  # by however many
        new = cloud.init_s * cloud.price_s + cloud.data_price
        waits = 0.0 if cloud.billing is Billing.FUNCTION else self._grow_s * cloud.price_s
        self._costs, self._options = costs, options
        # Growing costs the first x (instances of the stage) + the second x (instances before).
        self._each_new, self._each_old = new, waits - new
        self._instances = [np.array([one.instances for one in of]) for of in options]
        self._length_s = [np.array([one.length_s for one in of]) for of in options]
        self._cost = [np.array([one.cost for one in of]) for of in options]

    def to_pay(self, price: float, weight: float = 1.0) -> tuple[Floats, ...]:
        """Return the least of weight x cost + price x time from each stage to the end.

        By the instances before the stage; one more than stages, the last is 0.
        """
        rows = 1 + max(int(one.max()) for one in self._instances)
        count = np.arange(rows)
        each_new = weight * self._each_new * count + price * self._grow_s
        each_old = weight * self._each_old * count
        tables = [np.zeros(rows)]
        for stage in reversed(range(len(self._cost))):
            at = self._instances[stage]
            of = weight * self._cost[stage] + price * self._length_s[stage] + tables[-1][at]
            stay = np.full(rows, np.inf)
            np.minimum.at(stay, at, of)
            here = np.minimum.accumulate(stay)
            above = np.minimum.accumulate((stay + each_new)[::-1])[::-1]
            here[:-1] = np.minimum(here[:-1], above[1:] + each_old[:-1])
            tables.append(here)
        return tuple(reversed(tables))

    def plan(self, price: float, weight: float = 1.0) -> Planned:
        """Return the plan that takes the way of ``to_pay``."""
        tables, before, chosen = self.to_pay(price, weight), 0, list[int]()
        for stage, instances in enumerate(self._instances):
            of = weight * self._cost[stage] + price * self._length_s[stage]
            of = of + tables[stage + 1][instances]
            grown = weight * (self._each_new * instances + self._each_old * before)
            grown = grown + price * self._grow_s
            best = int(np.argmin(of + np.where(instances > before, grown, 0.0)))
            chosen.append(self._options[stage][best].gpus)
            before = int(instances[best])
        return self._costs.predict(tuple(chosen))

    def right_price(self, deadline_s: float) -> tuple[float, Planned | None]:
        """Return the least price at which its plan is in time, and the best plan on the way."""
        known: Planned | None = None

        def is_in_time(price: float) -> bool:
            nonlocal known
            plan = self.plan(price)
            if plan.time_s > deadline_s + 1e-9:
                return False
            if known is None or plan.cost < known.cost:
                known = plan
            return True

        low, high = 0.0, self._costs.cloud.price_s
        for _ in range(DOUBLINGS):
            if is_in_time(high):
                break
            high *= 2.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            low, high = (low, middle) if is_in_time(middle) else (middle, high)
        return high, known


class Bound:
    """Bounds for all stages, instances and times left, by many prices of a second."""

    def __init__(self, relaxation: Relaxation, price: float, most_price_s: float) -> None:
        """Take prices around one, up to ``RANGE`` times the greater of both."""
        highest = RANGE * max(price, most_price_s)
        self._prices = np.unique([0.0, *np.geomspace(price / RANGE, highest, PRICES), price])
        tables = [relaxation.to_pay(float(one)) for one in self._prices]
        # One more than stages: prices x instances, and by instances the time that it takes at all.
        self._to_pay = tuple(np.stack(of) for of in zip(*tables, strict=True))
        self._least_s = relaxation.to_pay(1.0, weight=0.0)

    def rest(self, stage: int, instances: int, left_s: Floats) -> Floats:
        """Return what is to be paid from a stage on; infinite where it cannot be in time."""
        instances = min(instances, self._to_pay[stage].shape[1] - 1)
        at = self._to_pay[stage][:, instances]
        # What is to be paid is concave in the price: the best price falls with the time left.
        worth_s = np.diff(at) / np.diff(self._prices)
        best = np.searchsorted(-worth_s, -left_s)
        rest = np.maximum(at[best] - self._prices[best] * left_s, 0.0)
        return np.where(left_s < self._least_s[stage][instances] - 1e-9, np.inf, rest)


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
    relaxation = Relaxation(costs, options)
    price, known = relaxation.right_price(deadline_s)
    lower = Bound(relaxation, price, costs.cloud.price_s)
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
    return Relaxation(costs, options).plan(1.0, weight=0.0)


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
