"""What a stage may have: for each number of instances the allocations that are worth a look."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bftrainer.study.plan.cloud import Billing
from bftrainer.study.plan.stage_cost import Costs


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
