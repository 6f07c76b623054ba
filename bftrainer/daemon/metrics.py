"""The metrics that the daemon exports for Prometheus.

One ``MetricsRegistry`` per daemon. Recurring events are observed as they happen
(``decision_seconds``, ``hand_over_seconds`` and so on); the current state is a ``MetricSample``
from a source called at every scrape. **To export something more, add a source**:
``metrics.add(lambda: [MetricSample(...)])``. Names end in their unit, or in ``_total`` for
counters; labels have few values, never a job, node or trainer.

``bftrainer.daemon.service`` calls it at every scrape, with the data of ``bftrainer status``.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bftrainer.daemon.harm.ledger import BUCKETS_S, HarmRecords, How, Why
from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import StatusView

_DECISION_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_TOTAL = "_total"

# They would add a useless series per counter. (The library's function has no hints.)
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """One metric at the time of a scrape."""

    name: str  # bftrainer_..., ending in its unit, or in _total for counters
    meaning: str
    value: float = 0.0
    label: str = ""  # of ``by_label``
    by_label: tuple[tuple[str, float], ...] = ()  # instead of ``value``


Source = Callable[[], Iterable[MetricSample]]


class MetricsRegistry:
    """The registry of one daemon."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.decision_seconds = Histogram(
            "bftrainer_decision_seconds",
            "Duration of a decision.",
            buckets=_DECISION_BUCKETS_S,
            registry=self._registry,
        )
        self._hand_over_seconds = Histogram(
            "bftrainer_hand_over_seconds",
            "From our release or the batch system's signal until the node was free for a job.",
            ["how"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        counter = partial(Counter, registry=self._registry)
        self._unmeasured = counter(
            "bftrainer_hand_overs_unmeasured_total",
            "Hand-overs with an unknown beginning.",
        )
        self._vain = counter(
            "bftrainer_vain_give_backs_total",
            "Nodes released for a job that did not take them.",
            ["why"],
        )
        self._preemptions = counter(
            "bftrainer_preemptions_total",
            "Nodes that ordinary jobs got because the batch system ended a pilot.",
        )
        self._taken = counter(
            "bftrainer_pilots_taken_total",
            "Pilots that the batch system ended without any job seen on their node.",
        )
        self._process_free_seconds = Histogram(
            "bftrainer_process_free_seconds",
            "From our order or the batch system's signal until a poll showed the pilot's job gone.",
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._left = counter(
            "bftrainer_nodes_left_total",
            "Nodes that pilots left, and ordinary jobs on nodes that have had pilots.",
            ["by"],
        )
        self._unusable = counter(
            "bftrainer_nodes_left_unusable_total",
            "Of these, nodes that were drained, down or still completing soon after.",
            ["by"],
        )
        for by in ("pilot", "job"):
            self._left.labels(by)
            self._unusable.labels(by)
        for how in How:  # always exported, because alerts need existing series
            self._hand_over_seconds.labels(how.value)
        for why in Why:
            self._vain.labels(why.value)

    def add(self, source: Source) -> None:
        """Call this source at every scrape, too."""
        self._registry.register(_Asked(source))

    def settled(self, records: HarmRecords) -> None:
        """Count what the harm monitor has settled."""
        for done in records.hand_overs:
            if done.how is How.PREEMPTED:
                self._preemptions.inc()
            if done.delay_s is None:
                self._unmeasured.inc()
            else:
                self._hand_over_seconds.labels(done.how.value).observe(done.delay_s)
        for vain in records.vain:
            self._vain.labels(vain.why.value).inc()
        self._taken.inc(len(records.taken))
        for left in records.left:
            if left.took_s is not None:
                self._process_free_seconds.observe(left.took_s)
        self._left.labels("pilot").inc(len(records.left))
        self._left.labels("job").inc(records.ordinary_left)
        for event in records.unusable:
            self._unusable.labels("pilot" if event.pilot_id else "job").inc()

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry).decode()


class _Asked(Collector):
    """A source, adapted to the registry."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> list[Metric]:
        return []  # the source may not be ready when it is added

    def collect(self) -> Iterator[Metric]:
        for figure in self._source():
            yield _family(figure)


def _family(figure: MetricSample) -> Metric:
    labels = [figure.label] if figure.label else []
    is_counter = figure.name.endswith(_TOTAL)
    kind = CounterMetricFamily if is_counter else GaugeMetricFamily
    family = kind(figure.name, figure.meaning, labels=labels)
    if not figure.label:
        family.add_metric([], figure.value)
    for value, count in figure.by_label:
        family.add_metric([value], count)
    return family


# Counted by ``RefusedMessages``; always exported, because alerts need existing series.
REFUSALS = (
    "stranger", "handshake-failed", "malformed", "impostor", "before-hello", "superseded", "fenced",
    "later", "not-its-worker", "not-its-copy", "not-believed", "unknown", "failed",
)  # fmt: skip


# Without "bftrainer_"; one number each.
MEANINGS = {
    "nodes": "Nodes known to the batch system.",
    "idle_nodes": "Nodes without any job.",
    "pool_nodes": "Nodes that the last decision could use.",
    "held_nodes": "Nodes with a pilot whose agent answers.",
    "requested_nodes": "Nodes with a pilot that is not held.",
    "decisions_total": "Decisions that changed something.",
    "rescales_total": "Changes of trainers' sizes.",
    "pauses_total": "Pauses of trainers at changes of size.",
    "pause_seconds_total": "Time that trainers paused.",
    "give_backs_total": "Nodes released for ordinary jobs, taken or not.",
    "back_off_level": "Level of back-off; 0: none.",
    "batch_system_known": "1 if the last poll was complete.",
    "journal_writable": "0 while decisions cannot be journalled.",
    "slow_nodes": "Nodes remembered as slow.",
    "cooling_nodes": "Nodes not used because workers failed there, or pilots left them unusable.",
    "cut_trainers": "Trainers with nodes apart (BFT-1340).",
    "stragglers_found_total": "Workers found persistently slow.",
    "stragglers_replaced_total": "Stragglers replaced by another node.",
    "trainers_without_progress": "Trainers that start again and again and keep no progress.",
    "untrained_node_seconds_total": "Time of nodes with a pilot while no worker trained there.",
    "mute_pilots": "Pilots in a row that ended before their agents spoke (BFT-1331).",
    "vain_trainers": "Trainers that used up many pilots without a step (BFT-1311).",
    "unreachable_agents": "Agents that are not heard and did not say that they leave.",
    "left_out": "Trainers, jobs and nodes left out of decisions because they fail on them.",
    "failed_decisions_total": "Failures of decisions, which were repeated without their cause.",
    "looks_total": "Polls of the batch system.",
    "controller_requests_last_minute": (
        "Requests to the batch system's controller in the last minute."
    ),
    "controller_requests_allowed_per_minute": (
        "Limit of requests per minute for all polls together."
    ),
}


def daemon_figures(
    status: StatusView, values: Mapping[str, float], refused: Mapping[str, int]
) -> tuple[MetricSample, ...]:
    """Return the metrics.

    Args:
        status: of the daemon.
        values: of those in ``MEANINGS`` that the status does not have.
        refused: messages of agents, by kind.
    """
    polling, states = status.polling, collections.Counter(v.record.state for v in status.trainers)
    values = {
        "nodes": status.nodes_total,
        "idle_nodes": status.nodes_idle,
        "held_nodes": status.nodes_held,
        "requested_nodes": status.nodes_requested,
        "decisions_total": status.decisions,
        "rescales_total": status.rescales,
        "give_backs_total": status.give_backs,
        "batch_system_known": status.observed == "present",
        **values,
    }
    labelled = [
        ("trainers", "Trainers.", "state", [(str(s), states[s]) for s in TrainerState]),
        (
            "refused_total",
            "Connections and messages to the agents' port that were refused.",
            "kind",
            [(kind, refused.get(kind, 0)) for kind in REFUSALS],
        ),
    ]
    if polling is not None:
        values |= {
            "looks_total": polling.looks,
            "controller_requests_last_minute": polling.requests_last_minute,
            "controller_requests_allowed_per_minute": polling.total_per_minute,
        }
        for name, meaning, counts in (
            ("controller_requests", "Requests to the batch system's controller.", polling.requests),
            ("hook_relays", "What relays of the hook told, and what was refused.", polling.told),
        ):
            by_kind = [(one.kind, one.total) for one in counts]
            labelled.append((f"{name}_total", meaning, "kind", by_kind))
    return (
        *(
            MetricSample(name=f"bftrainer_{name}", meaning=MEANINGS[name], value=float(value))
            for name, value in values.items()
        ),
        *(
            MetricSample(
                name=f"bftrainer_{name}",
                meaning=meaning,
                label=label,
                by_label=tuple((value, float(count)) for value, count in counts),
            )
            for name, meaning, label, counts in labelled
        ),
    )
