"""Rescales and progress as observed → the costs the next decision uses.

A new measurement replaces a known one only when it differs enough: decisions must
not oscillate with the noise of a measurement.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.actuate.group import Rescaled
from bftrainer.trainer import MeasuredCosts

NOISE = 0.25  # relative change that counts


def learn_rescale(costs: MeasuredCosts, done: Rescaled) -> MeasuredCosts:
    """Take over the pause of a grow or a shrink; a start and a loss teach nothing."""
    if done.reason != "planned" or not done.size_before:
        return costs
    if done.size > done.size_before:
        return replace(costs, rescale_up_s=_blend(costs.rescale_up_s, done.pause_s))
    if done.size < done.size_before:
        return replace(costs, rescale_down_s=_blend(costs.rescale_down_s, done.pause_s))
    return costs


def learn_throughput(costs: MeasuredCosts, size: int, samples_per_s: float) -> MeasuredCosts:
    """Take over the throughput a generation reached at its size."""
    if samples_per_s <= 0.0:
        return costs
    known = dict(costs.samples_per_s_by_size)
    known[size] = _blend(known.get(size), samples_per_s)
    return replace(costs, samples_per_s_by_size=tuple(sorted(known.items())))


def _blend(known: float | None, measured: float) -> float:
    if known is None:
        return measured
    if abs(measured - known) <= NOISE * known:
        return known
    return 0.5 * (known + measured)
