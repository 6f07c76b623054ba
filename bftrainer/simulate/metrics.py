"""What a replay was good for: the paper's figures of merit and a few of ours.

Source: BFTrainer paper, section 4.1: resource integral (eq. 17), N_eq (eq. 18), A_e (what
was processed on the fragments), A_s (what N_eq nodes, always there and shared equally by
P_jmax trainers, would have processed), U = A_e / A_s. Samples beyond a trainer's end
do not count. Fairness: R. Jain et al., DEC-TR-301 (1984).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from bftrainer.simulate.replay import Outcome
from bftrainer.simulate.trainers import SimTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of merit of one replay; times in seconds, amounts in samples."""

    utilization: float  # U = a_e / a_s
    n_eq: float
    a_e: float
    a_s: float
    resource_integral_node_h: float
    node_share_training: float  # of the resource integral
    node_share_held: float  # with a pilot of ours
    cost_preemption: float  # share of a_s
    cost_rescale: float  # share of a_s
    cost_unused: float  # share of a_s: the rest of what is missing
    events: int
    decisions: int
    rescales: int
    preemptions: int
    submitted: int
    completed: int
    runtime_mean_s: float | None  # first start to end, of the completed
    queue_time_mean_s: float | None  # submission to first start, of those that started
    jct_mean_s: float | None  # submission to end, of the completed
    jct_median_s: float | None
    jain_index: float | None  # of the mean rates of trainers that ran, by their best rate
    slowdown_mean: float | None  # runtime over runtime at the equal static share
    slowdown_max: float | None
    decision_ms_mean: float


def measure(outcome: Outcome) -> Metrics:
    """Add up one replay."""
    tally = outcome.tally
    begin_s, end_s = outcome.trace.span_s
    span_s = end_s - begin_s
    n_eq = tally.node_s_offered / span_s
    a_e = sum(min(t.done, t.submission.samples) for t in outcome.trainers)
    a_s = static_outcome(outcome, n_eq, span_s)
    complete = [t for t in outcome.trainers if t.finished_s is not None]
    started = [t for t in outcome.trainers if t.started_s is not None]
    jct = [t.finished_s - t.record.submitted_s for t in complete if t.finished_s is not None]
    slowdowns = _slowdowns(complete, n_eq / outcome.settings.p_jmax)
    offered = max(tally.node_s_offered, 1e-9)
    lost = tally.preemption_cost + tally.rescale_cost
    return Metrics(
        utilization=a_e / a_s if a_s else 0.0,
        n_eq=n_eq,
        a_e=a_e,
        a_s=a_s,
        resource_integral_node_h=tally.node_s_offered / 3600.0,
        node_share_training=tally.node_s_used / offered,
        node_share_held=tally.node_s_held / offered,
        cost_preemption=tally.preemption_cost / a_s if a_s else 0.0,
        cost_rescale=tally.rescale_cost / a_s if a_s else 0.0,
        cost_unused=(a_s - a_e - lost) / a_s if a_s else 0.0,
        events=tally.events,
        decisions=tally.decisions,
        rescales=sum(t.rescales for t in outcome.trainers),
        preemptions=sum(t.preemptions for t in outcome.trainers),
        submitted=len(outcome.trainers),
        completed=len(complete),
        runtime_mean_s=_mean([_runtime_s(t) for t in complete]),
        queue_time_mean_s=_mean([(t.started_s or 0.0) - t.record.submitted_s for t in started]),
        jct_mean_s=_mean(jct),
        jct_median_s=median(jct) if jct else None,
        jain_index=_jain(started, end_s),
        slowdown_mean=_mean(slowdowns),
        slowdown_max=max(slowdowns, default=None),
        decision_ms_mean=1e3 * tally.decide_s / max(1, tally.decisions),
    )


def static_outcome(outcome: Outcome, n_eq: float, span_s: float) -> float:
    """Return A_s in samples: N_eq nodes shared equally by P_jmax trainers over the span.

    Different curves count with the share of trainers that took part.
    """
    p_jmax = outcome.settings.p_jmax
    took_part = [t for t in outcome.trainers if t.started_s is not None] or outcome.trainers
    curves = Counter(t.submission.curve for t in took_part)
    rate = sum(
        count * float(np.interp(n_eq / p_jmax, (0, *c.sizes), (0.0, *c.samples_per_s)))
        for c, count in curves.items()
    ) / max(1, len(took_part))
    return rate * p_jmax * span_s


def _runtime_s(trainer: SimTrainer) -> float:
    return (trainer.finished_s or 0.0) - (trainer.started_s or 0.0)


def _slowdowns(complete: Sequence[SimTrainer], share: float) -> list[float]:
    found = []
    for t in complete:
        c = t.submission.curve
        rate = float(np.interp(share, (0, *c.sizes), (0.0, *c.samples_per_s)))
        if rate > 0:
            found.append(_runtime_s(t) / (t.submission.samples / rate))
    return found


def _jain(started: Sequence[SimTrainer], end_s: float) -> float | None:
    """Fairness of the mean rates, each relative to its trainer's rate on one node."""
    shares = []
    for t in started:
        ran_s = (t.finished_s or end_s) - (t.started_s or end_s)
        if ran_s > 0 and t.rates[1] > 0:
            shares.append(min(t.done, t.submission.samples) / ran_s / t.rates[1])
    square = sum(s * s for s in shares)
    return sum(shares) ** 2 / (len(shares) * square) if square else None


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None
