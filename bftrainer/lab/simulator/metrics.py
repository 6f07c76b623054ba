"""The figures of merit of a replay: the paper's, and some of our own.

Source: BFTrainer paper, section 4.1: resource integral (eq. 17), N_eq (eq. 18), A_e (samples
processed on the fragments), A_s (samples that N_eq static nodes, shared equally by P_jmax
trainers, would have processed), U = A_e / A_s. Samples beyond a trainer's end do not count.

A_s takes the trainers that ran, which a policy chooses: U compares policies only where the same
trainers ran. ``reference_node_h``, samples, completed trainers and the makespan do not depend on
that, and are the figures to compare policies by.
Fairness: R. Jain et al., DEC-TR-301 (1984). Formulas and units of every
figure are in docs/design/simulator.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import mean
from typing import Any, Final, NamedTuple

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.lab.simulator.replay import Outcome
from bftrainer.lab.simulator.trainers import SimTrainer
from bftrainer.model.quantities import quantity, time_span
from milp.problem import Curve
from milp.tables import rate_at

REFERENCE_NODES: Final = 1  # the fixed size at which work is counted

# The glossary, reports and pages say it in these words (tests/unit/house/test_definitions.py).
MEANING_OF_U: Final = (
    "U is the samples that trainers process on idle nodes, over those that the same trainers would"
    " process on as many nodes as are idle on average, always there and without rescales"
)
WHICH_FIGURE: Final = (
    "Compare policies by work done: each trainer's samples by its own rate on one node, no matter"
    " which trainers ran. Samples compare where all train the same network, completed trainers and"
    " the makespan where they end. U compares only where the same trainers ran:"
    f" {MEANING_OF_U}."
)
SHARE, MEAN, WHOLE, FINE = ".2%", ",.2f", ",.0f", ".3f"  # formats of numbers
LARGE, SPAN = "quantity", "time_span"  # no formats: the functions of these names


class Word(NamedTuple):
    """Name, unit and meaning of a figure of merit; ``form`` is the format of its number."""

    label: str
    unit: str
    form: str
    meaning: str

    @property
    def title(self) -> str:
        """The name, with its unit where the numbers do not have it."""
        if not self.unit or self.form == SPAN:
            return self.label
        return f"{self.label} ({self.unit})"

    def shown(self, value: float | None) -> str:
        """Return a number for readers; a dash if there is none."""
        if value is None:
            return "-"
        if self.form == LARGE:
            return quantity(value, 4)
        if self.form == SPAN:
            return time_span(value, 4)
        return format(value, self.form)


def _figure(label: str, form: str = WHOLE, *, unit: str = "", meaning: str = "") -> Any:
    return field(metadata={"word": Word(label, unit, form, meaning)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures of merit of one replay; times in seconds, amounts in samples.

    ``None`` for means over nothing. Except for the times of decisions, which are wall-clock
    times, all values are the same in every replay with the same settings.
    """

    utilization: float = _figure("utilization U", ".4f", meaning="A_e / A_s (section 4.1)")
    reference_node_h: float = _figure(
        "work done",
        ",.1f",
        unit="reference node-hours",
        meaning="samples of each trainer by its own rate on one node: no matter which ones ran",
    )
    n_eq: float = _figure("N_eq", MEAN, unit="nodes", meaning="mean size of the pool (eq. 18)")
    a_e: float = _figure("A_e", LARGE, unit="samples", meaning="processed on the fragments")
    a_s: float = _figure(
        "A_s", LARGE, unit="samples", meaning="what N_eq nodes that are always there would process"
    )
    resource_integral_node_h: float = _figure(
        "resource integral", ",.1f", unit="node-hours", meaning="eq. 17"
    )
    node_share_training: float = _figure(
        "of it training", SHARE, meaning="node-time in which a worker trained"
    )
    node_share_held: float = _figure(
        "of it held", SHARE, meaning="node-time with a pilot (physical costs)"
    )
    cost_preemption: float = _figure(
        "lost to preemptions", SHARE, meaning="share of A_s: nodes taken back"
    )
    cost_rescale: float = _figure(
        "lost to rescales", SHARE, meaning="share of A_s: sizes changed by decision"
    )
    cost_unused: float = _figure("unused", SHARE, meaning="share of A_s: the rest of 1 - U")
    events: int = _figure("events", meaning="instants at which the pool changes")
    decisions: int = _figure("decisions")
    rescales: int = _figure("rescales", meaning="changes of size by decision, starts included")
    preemptions: int = _figure("preemptions", meaning="trainer and event, whatever it lost")
    pilots_per_first_step: float | None = _figure(
        "pilots per first step",
        MEAN,
        meaning="requested, by those whose node made a first step (physical costs)",
    )
    submitted: int = _figure("trainers submitted")
    completed: int = _figure("trainers completed")
    makespan_s: float | None = _figure(
        "makespan", SPAN, unit="s", meaning="begin to the last end; none unless all ended"
    )
    runtime_mean_s: float | None = _figure(
        "runtime, mean", SPAN, unit="s", meaning="first start to end, of the completed"
    )
    runtime_median_s: float | None = _figure("runtime, median", SPAN, unit="s")
    queue_time_mean_s: float | None = _figure(
        "queue time, mean", SPAN, unit="s", meaning="submission to first start, of the started"
    )
    queue_time_max_s: float | None = _figure("queue time, longest", SPAN, unit="s")
    jct_mean_s: float | None = _figure(
        "completion time, mean", SPAN, unit="s", meaning="submission to end, of the completed"
    )
    jct_median_s: float | None = _figure("completion time, median", SPAN, unit="s")
    jct_p90_s: float | None = _figure("completion time, p90", SPAN, unit="s")
    jain_index: float | None = _figure(
        "Jain's index", FINE, meaning="of mean rates, each by that on one node"
    )
    slowdown_mean: float | None = _figure(
        "slowdown, mean", MEAN, meaning="runtime by that at the equal static share"
    )
    slowdown_max: float | None = _figure("slowdown, largest", MEAN)
    decision_ms_mean: float = _figure(
        "decision, mean", FINE, unit="ms", meaning="by the wall clock"
    )
    decision_ms_p50: float | None = _figure("decision, p50", FINE, unit="ms")
    decision_ms_p99: float | None = _figure("decision, p99", FINE, unit="ms")
    decision_ms_max: float | None = _figure("decision, longest", FINE, unit="ms")


WORDS: Mapping[str, Word] = {figure.name: figure.metadata["word"] for figure in fields(Metrics)}


def measure(outcome: Outcome) -> Metrics:
    """Compute the metrics of a replay."""
    tally = outcome.tally
    begin_s, end_s = outcome.trace.span_s
    span_s = end_s - begin_s
    n_eq = tally.node_s_offered / span_s
    a_e = sum(t.processed for t in outcome.trainers)
    a_s = static_outcome(outcome, n_eq, span_s)
    runtimes = _without_none(map(runtime_s, outcome.trainers))
    queue_times = _without_none(map(queue_time_s, outcome.trainers))
    jct = completion_times_s(outcome)
    decision_ms = [1e3 * decision_s for decision_s in outcome.decision_s]
    slowdowns = _slowdowns(outcome.trainers, n_eq / outcome.settings.p_jmax)
    offered = max(tally.node_s_offered, 1e-9)
    lost_samples = tally.preemption_cost + tally.rescale_cost
    return Metrics(
        utilization=_of_static(a_e, a_s),
        reference_node_h=reference_node_h(
            (t.submission.curve, t.processed) for t in outcome.trainers
        ),
        n_eq=n_eq,
        a_e=a_e,
        a_s=a_s,
        resource_integral_node_h=tally.node_s_offered / 3600.0,
        node_share_training=tally.node_s_used / offered,
        node_share_held=tally.node_s_held / offered,
        cost_preemption=_of_static(tally.preemption_cost, a_s),
        cost_rescale=_of_static(tally.rescale_cost, a_s),
        cost_unused=_of_static(a_s - a_e - lost_samples, a_s),
        events=tally.events,
        decisions=tally.decisions,
        rescales=sum(t.rescales for t in outcome.trainers),
        preemptions=sum(t.preemptions for t in outcome.trainers),
        pilots_per_first_step=(
            tally.pilots / tally.pilots_trained if tally.pilots_trained else None
        ),
        submitted=len(outcome.trainers),
        completed=len(jct),
        makespan_s=makespan_s(outcome.trainers, begin_s, end_s),
        runtime_mean_s=_mean(runtimes),
        runtime_median_s=_quantile(runtimes, 0.5),
        queue_time_mean_s=_mean(queue_times),
        queue_time_max_s=max(queue_times, default=None),
        jct_mean_s=_mean(jct),
        jct_median_s=_quantile(jct, 0.5),
        jct_p90_s=_quantile(jct, 0.9),
        jain_index=jain(outcome.trainers, end_s),
        slowdown_mean=_mean(slowdowns),
        slowdown_max=max(slowdowns, default=None),
        decision_ms_mean=1e3 * tally.decide_s / max(1, tally.decisions),
        decision_ms_p50=_quantile(decision_ms, 0.5),
        decision_ms_p99=_quantile(decision_ms, 0.99),
        decision_ms_max=max(decision_ms, default=None),
    )


def static_outcome(outcome: Outcome, n_eq: float, span_s: float) -> float:
    """Return A_s in samples: N_eq nodes shared equally by P_jmax trainers over the span.

    Trainers of different curves do their own work there, one after the other in P_jmax
    places, so that slow ones take more of the time: the harmonic mean of the rates, by the
    samples of each trainer that took part.
    """
    return static_samples(outcome.trainers, n_eq, outcome.settings.p_jmax, span_s)


def static_samples(
    trainers: Sequence[SimTrainer], n_eq: float, p_jmax: int, span_s: float
) -> float:
    """Return A_s of trainers that have had N_eq nodes on average."""
    took_part = [t for t in trainers if t.started_s is not None] or trainers
    share = n_eq / p_jmax
    works: dict[Curve, float] = {}
    for t in took_part:
        works[t.submission.curve] = works.get(t.submission.curve, 0.0) + t.submission.samples
    rates = {curve: rate_at(curve, share) for curve in works}
    if not works or not all(rates.values()):
        return 0.0
    time_s = sum(samples / rates[c] for c, samples in works.items())
    return sum(works.values()) / time_s * p_jmax * span_s


def reference_node_h(work: Iterable[tuple[Curve, float]]) -> float:
    """Return the work that was done, in node-hours at a fixed reference.

    The sum over trainers of the samples that a trainer has processed, less what rescales and
    preemptions cost it, over those that it processes in an hour on ``REFERENCE_NODES`` nodes which
    it always has. Every trainer counts, by its own curve: neither which of them ran, nor P_jmax,
    nor how many nodes were idle enters the unit. Where curves are alike it is proportional to the
    samples; a decision for scaling efficiency maximises its rate. A curve that begins at a larger
    size has its share there, as decisions take it: the line from (0, 0) to its first size.

    Args:
        work: the curve (samples per second by size) and the samples of each trainer.

    Source: our own; the paper's A_s (section 4.1) takes the mean share of the pool instead, and
    the trainers that ran.
    """
    return sum(
        samples / reference_rate(curve) * REFERENCE_NODES / HOUR_S
        for curve, samples in work
        if samples
    )


def reference_rate(curve: Curve) -> float:
    """Return the samples per second on the reference nodes, more than 0.

    Where they make nothing, their share of the least size that makes something.

    Raises:
        ValueError: the curve is 0 everywhere.
    """
    if (rate := rate_at(curve, REFERENCE_NODES)) > 0.0:
        return rate
    for size, samples_per_s in zip(curve.sizes, curve.samples_per_s, strict=True):
        if samples_per_s > 0.0:
            return samples_per_s / size * REFERENCE_NODES
    raise ValueError("the curve is 0 everywhere, and yet there are samples")


def makespan_s(trainers: Sequence[SimTrainer], begin_s: float, end_s: float) -> float | None:
    """Return the seconds from the begin to the last end of the trainers that came before the end.

    None if one of them has not ended.
    """
    ends_s = [t.finished_s for t in trainers if t.record.submitted_s < end_s]
    last_s = max([end for end in ends_s if end is not None], default=begin_s)
    return None if None in ends_s else last_s - begin_s


def completion_times_s(outcome: Outcome) -> list[float]:
    """Submission to end of every trainer that is complete, in FCFS order (JCT)."""
    return [
        t.finished_s - t.record.submitted_s for t in outcome.trainers if t.finished_s is not None
    ]


def runtime_s(trainer: SimTrainer) -> float | None:
    """First start to end; none while it is not complete."""
    if trainer.finished_s is None or trainer.started_s is None:
        return None
    return trainer.finished_s - trainer.started_s


def queue_time_s(trainer: SimTrainer) -> float | None:
    """Submission to first start; none while it has not started."""
    if trainer.started_s is None:
        return None
    return trainer.started_s - trainer.record.submitted_s


def _slowdowns(trainers: Sequence[SimTrainer], share: float) -> list[float]:
    """Runtime of the complete ones over that at an equal static share of the nodes."""
    slowdowns = []
    for trainer in trainers:
        ran_s, rate = runtime_s(trainer), rate_at(trainer.submission.curve, share)
        if ran_s is not None and rate > 0:
            slowdowns.append(ran_s * rate / trainer.submission.samples)
    return slowdowns


def jain(trainers: Sequence[SimTrainer], end_s: float) -> float | None:
    """Fairness of the mean rates, each relative to its trainer's rate on one node."""
    shares = []
    for t in trainers:
        if t.started_s is None:
            continue
        ran_s = (end_s if t.finished_s is None else t.finished_s) - t.started_s
        if ran_s > 0 and t.rates[1] > 0:
            shares.append(t.processed / ran_s / t.rates[1])
    square = sum(s * s for s in shares)
    total = sum(shares)
    if not square:
        return None
    return total * total / (len(shares) * square)


def _of_static(samples: float, a_s: float) -> float:
    """Return samples as a share of A_s; 0 where A_s is."""
    return samples / a_s if a_s else 0.0


def _without_none(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None
