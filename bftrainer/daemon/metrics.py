"""The metrics that the daemon exports for Prometheus.

One ``MetricsRegistry`` per daemon. Recurring events are observed as they happen
(``decision_seconds``, ``hand_over_seconds`` and so on); the current state is a ``MetricSample``
from a source called at every scrape. **To export something more, add a source**:
``metrics.add(lambda: [MetricSample(...)])``. Names end in their unit, or in ``_total`` for
counters; labels have few values, never a job, node or trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bftrainer.daemon.harm.records import HarmRecords, How, Why
from bftrainer.daemon.harm.slo import BUCKETS_S

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
