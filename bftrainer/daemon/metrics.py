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
from dataclasses import dataclass, field

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bftrainer.daemon.harm.records import BUCKETS_S, HarmRecords, How, Why
from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import PollingView, StatusView

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
        self._unmeasured = Counter(
            "bftrainer_hand_overs_unmeasured_total",
            "Hand-overs with an unknown beginning.",
            registry=self._registry,
        )
        self._vain = Counter(
            "bftrainer_vain_give_backs_total",
            "Nodes released for a job that did not take them.",
            ["why"],
            registry=self._registry,
        )
        self._preemptions = Counter(
            "bftrainer_preemptions_total",
            "Nodes that ordinary jobs got because the batch system ended a pilot.",
            registry=self._registry,
        )
        self._taken = Counter(
            "bftrainer_pilots_taken_total",
            "Pilots that the batch system ended without any job seen on their node.",
            registry=self._registry,
        )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Data for a scrape beyond the status."""

    pool_nodes: int
    pauses: int
    paused_s: float
    back_off_level: int
    slow_nodes: int = 0
    cooling_nodes: int = 0
    mute_pilots: int = 0
    cut_trainers: int = 0
    vain_trainers: int = 0
    stragglers_found: int = 0
    stragglers_replaced: int = 0
    can_write_down: bool = True
    left_out: int = 0
    failed_decisions: int = 0
    unreachable: int = 0
    vain: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)  # of agents, by kind


def daemon_figures(status: StatusView, extras: Extras) -> tuple[MetricSample, ...]:
    """Return the metrics."""
    states = collections.Counter(view.record.state for view in status.trainers)
    return (
        _figure("nodes", "Nodes known to the batch system.", status.nodes_total),
        _figure("idle_nodes", "Nodes without any job.", status.nodes_idle),
        _figure("pool_nodes", "Nodes that the last decision could use.", extras.pool_nodes),
        _figure("held_nodes", "Nodes with a pilot whose agent answers.", status.nodes_held),
        _figure("requested_nodes", "Nodes with a pilot that is not held.", status.nodes_requested),
        _figure("decisions_total", "Decisions that changed something.", status.decisions),
        _figure("rescales_total", "Changes of trainers' sizes.", status.rescales),
        _figure("pauses_total", "Pauses of trainers at changes of size.", extras.pauses),
        _figure("pause_seconds_total", "Time that trainers paused.", extras.paused_s),
        _figure(
            "give_backs_total", "Nodes released for ordinary jobs, taken or not.",
            status.give_backs,
        ),
        _figure(
            "back_off_level", "Level of back-off; 0: none.",
            extras.back_off_level,
        ),
        _figure(
            "batch_system_known", "1 if the last poll was complete.",
            float(status.observed == "present"),
        ),
        _figure(
            "journal_writable", "0 while decisions cannot be journalled.",
            float(extras.can_write_down),
        ),
        _figure("slow_nodes", "Nodes remembered as slow.", extras.slow_nodes),
        _figure(
            "cooling_nodes", "Nodes not used because workers failed there.",
            extras.cooling_nodes,
        ),
        _figure("cut_trainers", "Trainers with nodes apart (BFT-1340).", extras.cut_trainers),
        _figure(
            "stragglers_found_total", "Workers found persistently slow.", extras.stragglers_found
        ),
        _figure(
            "stragglers_replaced_total", "Stragglers replaced by another node.",
            extras.stragglers_replaced,
        ),
        _figure(
            "trainers_without_progress",
            "Trainers that start again and again and keep no progress.", extras.vain,
        ),
        *_agents(extras),
        *_harmless(extras),
        *_polling(status.polling),
        MetricSample(
            name="bftrainer_trainers",
            meaning="Trainers.",
            label="state",
            by_label=tuple((str(state), float(states[state])) for state in TrainerState),
        ),
    )  # fmt: skip


def _agents(extras: Extras) -> tuple[MetricSample, ...]:
    """Return what agents and pilots lack."""
    return (
        _figure(
            "mute_pilots", "Pilots in a row that ended before their agents spoke (BFT-1331).",
            extras.mute_pilots,
        ),
        _figure(
            "vain_trainers", "Trainers that used up many pilots without a step (BFT-1311).",
            extras.vain_trainers,
        ),
        _figure(
            "unreachable_agents", "Agents that are not heard and did not say that they leave.",
            extras.unreachable,
        ),
    )  # fmt: skip


def _harmless(extras: Extras) -> tuple[MetricSample, ...]:
    """Return what was left out or refused to protect the rest."""
    return (
        _figure(
            "left_out", "Trainers, jobs and nodes left out of decisions because they fail on"
            " them.", extras.left_out,
        ),
        _figure(
            "failed_decisions_total", "Failures of decisions, which were repeated without their"
            " cause.", extras.failed_decisions,
        ),
        MetricSample(
            name="bftrainer_refused_total",
            meaning="Connections and messages to the agents' port that were refused.",
            label="kind",
            by_label=tuple((kind, float(extras.refused.get(kind, 0))) for kind in REFUSALS),
        ),
    )  # fmt: skip


def _polling(polling: PollingView | None) -> tuple[MetricSample, ...]:
    if polling is None:
        return ()
    return (
        _figure("looks_total", "Polls of the batch system.", polling.looks),
        _figure(
            "controller_requests_last_minute",
            "Requests to the batch system's controller in the last minute.",
            polling.requests_last_minute,
        ),
        _figure(
            "controller_requests_allowed_per_minute",
            "Limit of requests per minute for all polls together.",
            polling.total_per_minute,
        ),
        MetricSample(
            name="bftrainer_controller_requests_total",
            meaning="Requests to the batch system's controller.",
            label="kind",
            by_label=tuple((asked.kind, float(asked.total)) for asked in polling.requests),
        ),
        MetricSample(
            name="bftrainer_hook_relays_total",
            meaning="What relays of the hook told, and what was refused of it.",
            label="kind",
            by_label=tuple((told.kind, float(told.total)) for told in polling.told),
        ),
    )


def _figure(name: str, meaning: str, value: float) -> MetricSample:
    return MetricSample(name=f"bftrainer_{name}", meaning=meaning, value=float(value))
