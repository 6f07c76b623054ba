"""The probability that a study is done by a deadline, and reserved nodes that raise it.

Reserved nodes are the user's own from the beginning until the study is done. They are added to
every future alike, so that more of them never make it less likely.

Each future of the pool either is enough for the study or is not; the probability is the share that
is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.study.deadline.futures import Counts, Drawing, PoolHistory, futures, history_of
from bftrainer.study.deadline.work import Work, finish_s

Floats = NDArray[np.float64]
LATE = 0.95  # p95


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveUse:
    """Time, node-hours and cost with a reserve: mean and p95; None: beyond the futures."""

    time_s: Mapping[str, float | None]  # from now until the study is done
    node_h: Mapping[str, float | None]
    cost: Mapping[str, float | None] | None  # in the price's currency; None: no price


def least_reserve(
    nodes: Counts, rates: Floats, step_s: float, *, left_s: float, confidence: float
) -> tuple[int, float] | None:
    """Return the fewest nodes that are enough, and how likely those are; None: no number is.

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
    return high, found


def held(reserved: int, ends_s: Floats, *, most_s: float, price_h: float | None) -> ReserveUse:
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
    return ReserveUse(
        time_s=time_s, node_h=node_h, cost=None if price_h is None else _times(node_h, price_h)
    )


def _times(amounts: Mapping[str, float | None], factor: float) -> dict[str, float | None]:
    return {name: None if one is None else one * factor for name, one in amounts.items()}


STEP_S = 60.0  # at least, of the history and of futures
STEPS = 480  # of a deadline at most
BEYOND = 3.0  # futures are this many deadlines long
QUANTILES = (0.5, 0.9, 0.95)  # of the time until the study is done
INTERVAL = 0.9  # probability that the interval holds
# What the groups differ tells too little: 0.84 of such intervals held (scripts/bench_deadline.py).
WIDER = 1.6
LEAST_DEADLINES, LEAST_S = 4.0, 12 * 3600.0  # length of a history, at least
UNSEEN = "The history never had so many idle nodes as there are now."


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The forecast for a study on the idle nodes of a pool."""

    deadline_s: float
    now_idle: int
    probability: float  # that it is done in time, on idle nodes alone
    low: float  # 90% interval of that: what a history of another such time might have told
    high: float
    confidence: float  # that is wanted
    reserved: int | None  # nodes that make it so likely; None: no number does
    probability_reserved: float | None  # with those
    held: ReserveUse | None  # what those take; None: there are none, not even 0
    finish_s: Mapping[str, float | None]  # p50, p90, p95; None: beyond the futures
    beyond_s: float  # how long the futures are
    least_s: float  # on as many nodes as it can use
    history_s: float
    mean_idle: float  # in the history
    notes: tuple[str, ...] = ()


def history_for(trace: Fragments, deadline_s: float, start_up_s: float) -> PoolHistory:
    """Return the history that a trace tells, at the steps that a deadline needs.

    Raises:
        UsageError: BFT-1651, the trace is too short for such a deadline.
    """
    needed_s = max(LEAST_S, LEAST_DEADLINES * deadline_s)
    if trace.duration_s < needed_s:
        raise UsageError(
            "BFT-1651",
            f"A history of {trace.duration_s / HOUR_S:.1f} h says too little of"
            f" {deadline_s / HOUR_S:.3g} h.",
            f"Give one of at least {needed_s / HOUR_S:.3g} h, or a shorter --deadline.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    step_s = max(STEP_S, deadline_s / STEPS)
    return history_of(trace, step_s=step_s, start_up_s=start_up_s)


def outlook(
    work: Work,
    history: PoolHistory,
    *,
    deadline_s: float,
    start_up_s: float,
    now_idle: int,
    confidence: float,
    drawing: Drawing,
    price_h: float | None = None,
) -> Outlook:
    """Return the outlook of a study that begins now.

    Args:
        work: of the study.
        history: of the pool, of ``history_for``.
        deadline_s: how long the study may take.
        start_up_s: from now until the first nodes train.
        now_idle: nodes that are idle now.
        confidence: what the reserved nodes are to make of the probability.
        drawing: of the futures.
        price_h: of a reserved node for an hour.
    """
    step_s, rates = history.step_s, work.rates()
    left_s = max(0.0, deadline_s - start_up_s)
    soon, long = (math.ceil(span_s / step_s) + 1 for span_s in (left_s, BEYOND * deadline_s))
    nodes = futures(history, now_idle, long, drawing)
    ends_s = start_up_s + finish_s(nodes, rates, step_s)
    in_time = ends_s <= deadline_s
    probability = float(in_time.mean())
    low, high = interval(in_time.reshape(drawing.groups, drawing.each))
    reserved, likely = least_reserve(
        nodes[:, :soon], rates, step_s, left_s=left_s, confidence=confidence
    ) or (None, None)
    taken, beyond_s = None, BEYOND * deadline_s
    if reserved is not None:
        with_it_s = start_up_s + finish_s(nodes + reserved, rates, step_s)
        taken = held(reserved, with_it_s, most_s=beyond_s, price_h=price_h)
    late = [float(np.quantile(ends_s, share, method="higher")) for share in QUANTILES]
    return Outlook(
        deadline_s=deadline_s,
        now_idle=now_idle,
        probability=probability,
        low=low,
        high=high,
        confidence=confidence,
        reserved=reserved,
        probability_reserved=likely,
        held=taken,
        finish_s={
            f"p{round(100 * share)}": end_s if end_s < math.inf else None
            for share, end_s in zip(QUANTILES, late, strict=True)
        },
        beyond_s=beyond_s,
        least_s=work.least_s() + start_up_s,
        history_s=history.duration_s,
        mean_idle=float(history.nodes.mean()),
        notes=() if now_idle <= history.nodes.max() else (UNSEEN,),
    )


def interval(in_time: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the interval of a share, of whether each future (columns) of each group is in time.

    From how much the groups differ beyond the chances of so few futures, on the scale of
    asin(sqrt(share)), on which that spread does not depend on the share.
    """
    share, each = in_time.mean(axis=1), in_time.shape[1]
    chance = float((share * (1.0 - share)).mean()) / (each - 1)
    spread = math.sqrt(max(0.0, float(share.var(ddof=1)) - chance) + chance / len(share))
    middle = float(in_time.mean())
    slope = 2.0 * math.sqrt(max(middle * (1.0 - middle), 1.0 / in_time.size))
    reach = WIDER * NormalDist().inv_cdf(0.5 + INTERVAL / 2.0) * spread / slope
    at = math.asin(math.sqrt(middle))
    low, high = max(0.0, at - reach), min(math.pi / 2.0, at + reach)
    return math.sin(low) ** 2, math.sin(high) ** 2
