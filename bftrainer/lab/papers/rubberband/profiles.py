"""Scaling profiles of ResNet-101 and ResNet-50, of which the paper publishes none but Table 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from bftrainer.lab.papers.rubberband.ring import fitted_bandwidth, measured, sending_s
from bftrainer.lab.papers.rubberband.setting import GPUS_PER_INSTANCE
from bftrainer.study.plan.problem import Draw, ScalingProfile

GPUS = (1, 2, 4, 8, 16, 32, 64, 128)
BETWEEN_INSTANCES = 1.25e9  # bytes per second: 10 Gbit/s of p3.8xlarge


def _smooth(one_s: float, fixed_s: float, between_s: float) -> ScalingProfile:
    """Return an epoch of which a part is shared, one is not, and one comes between instances."""

    def epoch_s(gpus: int) -> float:
        outside = 1.0 - GPUS_PER_INSTANCE / gpus if gpus > GPUS_PER_INSTANCE else 0.0
        return one_s / gpus + fixed_s * (1.0 - 1.0 / gpus) + between_s * outside

    return ScalingProfile(gpus=GPUS, unit_s=tuple(epoch_s(gpus) for gpus in GPUS))


RESNET101: Mapping[str, ScalingProfile] = {
    "A": _smooth(103.2, 0.0, 14.9),
    "B": _smooth(102.2, 6.0, 2.2),
    "C": _smooth(120.0, 4.0, 8.0),
    "D": ScalingProfile(gpus=(1, 2, 4, 8, 16, 32), unit_s=(102.0, 55.0, 35.5, 21.2, 20.9, 20.1)),
}


def by_ring(
    unit_s: float, batch: int, spread: float = 0.0, draw: Draw = Draw.UNIT
) -> ScalingProfile:
    """Return ResNet-50 with the ring of Table 1, and 10 Gbit/s between instances.

    Args:
        unit_s: of one GPU.
        batch: of all GPUs.
        spread: of a unit.
        draw: what is drawn.
    """
    rates = measured("placed")
    inside = fitted_bandwidth(rates)

    def step_s(gpus: int) -> float:
        bandwidth = inside if gpus <= GPUS_PER_INSTANCE else min(inside, BETWEEN_INSTANCES)
        return batch / rates[1] / gpus + sending_s(gpus, bandwidth)

    return ScalingProfile(
        gpus=GPUS,
        unit_s=tuple(unit_s * step_s(gpus) / step_s(1) for gpus in GPUS),
        spread=spread,
        draw=draw,
    )


def steady(unit_s: float, flat_from: int | None = None) -> ScalingProfile:
    """Return ResNet-50 by Table 1, whose last doubling goes on and on.

    Args:
        unit_s: of one GPU.
        flat_from: more GPUs bring nothing.
    """
    rates = measured("placed")
    doubling = rates[4] / rates[2]

    def faster(gpus: int) -> float:
        known = min(gpus, GPUS_PER_INSTANCE)
        return float(rates[known] / rates[1] * doubling ** math.log2(gpus / known))

    sizes = [gpus for gpus in GPUS if flat_from is None or gpus < flat_from]
    units = [unit_s / faster(gpus) for gpus in sizes]
    if flat_from is not None:
        sizes += [flat_from, 2 * flat_from]
        units += [unit_s / faster(flat_from)] * 2
    return ScalingProfile(gpus=tuple(sizes), unit_s=tuple(units))


RESNET50: Mapping[str, Callable[[float, int], ScalingProfile]] = {
    "ring": by_ring,
    "steady": lambda unit_s, _: steady(unit_s),
}
