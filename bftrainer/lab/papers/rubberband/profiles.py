"""Scaling profiles of ResNet-101 and ResNet-50, and Table 1: ring all-reduce with placement.

A step of n GPUs computes the n-th part of the batch and passes 2 (n - 1) / n of the gradients
through the slowest link.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from bftrainer.lab.papers.findings import Finding
from bftrainer.lab.papers.rubberband.setting import GPUS_PER_INSTANCE, TABLES, Points, means
from bftrainer.study.plan.problem import Draw, ScalingProfile

BATCH = 1024
GRADIENT_BYTES = 4 * 25_557_032  # ResNet-50, 32-bit
LEAST_BANDWIDTH, MOST_BANDWIDTH = 1e8, 5e10  # bytes per second
NARROWINGS = 60  # of the bracket
GPUS = (1, 2, 4, 8, 16, 32, 64, 128)
BETWEEN_INSTANCES = 1.25e9  # bytes per second: 10 Gbit/s of p3.8xlarge


def step_s(rate: float, gpus: int, bandwidth: float) -> float:
    """Return the time of a step.

    Args:
        rate: samples per second of one GPU.
        gpus: GPUs of the trial.
        bandwidth: bytes per second of the slowest link.
    """
    return BATCH / rate / gpus + sending_s(gpus, bandwidth)


def sending_s(gpus: int, bandwidth: float) -> float:
    """Return the time in which the gradients go round."""
    return 2.0 * (gpus - 1) / gpus * GRADIENT_BYTES / bandwidth


def fitted_bandwidth(rates: Mapping[int, float]) -> float:
    """Return the bandwidth whose largest relative deviation from measured rates is least.

    The rate of one GPU is given. Every deviation grows with the bandwidth, so it is the one at
    which the largest and the smallest are opposite.
    """
    low, high = LEAST_BANDWIDTH, MOST_BANDWIDTH
    for _ in range(NARROWINGS):
        middle = (low * high) ** 0.5
        shares = deviations(rates, middle)
        if max(shares) + min(shares) < 0.0:
            low = middle
        else:
            high = middle
    return low


def deviations(rates: Mapping[int, float], bandwidth: float) -> list[float]:
    """Return how far the model is from the measured rates of several GPUs, as shares."""
    return [
        BATCH / step_s(rates[1], gpus, bandwidth) / rate - 1.0
        for gpus, rate in rates.items()
        if gpus > 1
    ]


def measured(placed: str) -> dict[int, float]:
    """Return samples per second by GPUs of a row of Table 1."""
    sizes = TABLES["table1"]["columns"]
    return {size: mean.value for size, mean in zip(sizes, means("table1", placed), strict=True)}


def table1(finding: Finding, _: Points) -> None:
    """Compare the model with Table 1."""
    by_four = {}
    for name in ("placed", "scattered"):
        rates = measured(name)
        bandwidth = fitted_bandwidth(rates)
        ours = {gpus: BATCH / step_s(rates[1], gpus, bandwidth) for gpus in rates}
        for gpus, mean in zip(rates, means("table1", name), strict=True):
            if gpus == 1:  # its rate is given
                continue
            finding.line(
                "rate", ours[gpus], paper=mean.value, name=name, gpus=gpus, spread=mean.spread
            )
        by_four[name] = ours[4]
        finding.line(name, ours[4] / ours[1])
        finding.line("bandwidth", bandwidth / 1e9, name=name)
        ys = {name: tuple(ours.values()), f"{name}, paper": tuple(rates.values())}
        finding.chart("table1", map(float, rates), ys)
    slower = by_four["placed"] / by_four["scattered"]
    finding.line("slower", slower, holds=slower > 2.0)


def smooth(one_s: float, fixed_s: float, between_s: float) -> ScalingProfile:
    """Return an epoch of which a part is shared, one is not, and one comes between instances."""

    def epoch_s(gpus: int) -> float:
        outside = 0.0  # the share of the GPUs that are on other instances
        if gpus > GPUS_PER_INSTANCE:
            outside = 1.0 - GPUS_PER_INSTANCE / gpus
        return one_s / gpus + fixed_s * (1.0 - 1.0 / gpus) + between_s * outside

    return ScalingProfile(gpus=GPUS, unit_s=tuple(map(epoch_s, GPUS)))


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
        bandwidth = inside
        if gpus > GPUS_PER_INSTANCE:
            bandwidth = min(inside, BETWEEN_INSTANCES)
        return batch / rates[1] / gpus + sending_s(gpus, bandwidth)

    def scaled_s(gpus: int) -> float:
        return unit_s * step_s(gpus) / step_s(1)

    return ScalingProfile(
        gpus=GPUS,
        unit_s=tuple(map(scaled_s, GPUS)),
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
        inside = min(gpus, GPUS_PER_INSTANCE)  # measured up to here
        return float(rates[inside] / rates[1] * doubling ** math.log2(gpus / inside))

    sizes = [gpus for gpus in GPUS if flat_from is None or gpus < flat_from]
    units = [unit_s / faster(gpus) for gpus in sizes]
    if flat_from is not None:
        sizes += [flat_from, 2 * flat_from]
        units += [unit_s / faster(flat_from)] * 2
    return ScalingProfile(gpus=tuple(sizes), unit_s=tuple(units))
