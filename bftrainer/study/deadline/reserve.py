"""How many reserved nodes make a study certain enough, and how long they are held. Pure.

Reserved nodes are the user's own from the beginning until the study is done. They are added to
every future alike, so that more of them never make it less likely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.study.deadline.futures import Counts
from bftrainer.study.deadline.work import finish_s

Floats = NDArray[np.float64]
LATE = 0.95  # p95


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """The fewest nodes that are enough."""

    nodes: int
    probability: float  # that the study is done in time with them


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a reserve takes: mean and p95; None: beyond the futures."""

    time_s: Mapping[str, float | None]  # from now until the study is done
    node_h: Mapping[str, float | None]
    cost: Mapping[str, float | None] | None  # in the price's currency; None: no price


def least_reserve(
    nodes: Counts, rates: Floats, step_s: float, *, left_s: float, confidence: float
) -> Reserve | None:
    """Return the fewest nodes that are enough, by bisection; None: no number is.

    Args:
        nodes: futures, one row each, of at least ``left_s``.
        rates: of the study, see ``finish_s``; more nodes than its columns make nothing faster.
        step_s: of the futures.
        left_s: what is left until the deadline once nodes train.
        confidence: share of the futures in which the study is to be in time.
    """

    def likely(reserved: int) -> float:
        return float((finish_s(nodes + reserved, rates, step_s) <= left_s).mean())

    low, high = -1, rates.shape[1] - 1
    found = likely(high)
    if found < confidence:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        probability = likely(middle)
        if probability >= confidence:
            high, found = middle, probability
        else:
            low = middle
    return Reserve(nodes=high, probability=found)


def held(reserved: int, ends_s: Floats, *, most_s: float, price_h: float | None) -> Held:
    """Return what ``reserved`` nodes take until the study is done.

    Args:
        reserved: number of nodes.
        ends_s: when the study is done with them, in each future; may be infinite.
        most_s: how long the futures are. In the mean an infinite end counts as this.
        price_h: of a node for an hour.
    """
    late_s = float(np.quantile(ends_s, LATE, method="higher"))
    time_s = {
        "mean": float(np.minimum(ends_s, most_s).mean()),
        "p95": late_s if late_s < math.inf else None,
    }
    node_h = _times(time_s, reserved / HOUR_S)
    return Held(
        time_s=time_s,
        node_h=node_h,
        cost=None if price_h is None else _times(node_h, price_h),
    )


def _times(amounts: Mapping[str, float | None], factor: float) -> dict[str, float | None]:
    return {name: None if one is None else one * factor for name, one in amounts.items()}
