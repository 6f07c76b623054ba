"""The metrics that the daemon exports for Prometheus.

One ``MetricsRegistry`` per daemon. Recurring events are observed as they happen (``polled``,
``settled`` and so on); the current state is a ``MetricSample`` from a source called at every
scrape. **To export something more, add a source**: ``metrics.add(lambda: [MetricSample(...)])``.

Names follow Prometheus (https://prometheus.io/docs/practices/naming/): base units at the end,
``_total`` for counters; and Slurm's own metrics (https://slurm.schedmd.com/metrics.html), so that
``bftrainer_nodes_idle`` is found beside ``slurm_nodes_idle``, and ``username`` and ``account`` join
both. Labels have few values, never a job, node or trainer; users only where the policy says so.

``bftrainer.daemon.views`` calls it at every scrape, with the data of ``bftrainer status``.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bftrainer.daemon.harm.ledger import BUCKETS_S, HarmRecords, How, Why, lost_cycles
from bftrainer.model.reports import Use, UserAccount
from bftrainer.model.trainer import TrainerRecord, TrainerState
from bftrainer.model.views import StatusView

_DECISION_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_TOTAL = "_total"
OF_PILOT, OF_JOB = "pilot", "job"  # whose a node was
# Counted by ``RefusedMessages``; always exported, because alerts need existing series.
REFUSALS: Final = (
    "stranger", "handshake-failed", "malformed", "impostor", "before-hello", "superseded", "fenced",
    "later", "not-its-worker", "not-its-copy", "not-believed", "unknown", "failed",
)  # fmt: skip
# Without "bftrainer_"; one number each.
MEANINGS: Final = {
    "nodes": "Nodes known to the batch system.",
    "nodes_idle": "Nodes without any job.",
    "nodes_pool": "Nodes that the last decision could use.",
    "nodes_requested": "Nodes with a pilot that is not held.",
    "nodes_held": "Nodes with a pilot whose agent answers.",
    "nodes_training": "Nodes on which a worker of a trainer's generation runs.",
    "gpus_held": "GPUs of the nodes that are held.",
    "gpus_training": "GPUs of the nodes on which a worker of a trainer's generation runs.",
    "decisions_total": "Decisions that changed something.",
    "rescales_total": "Changes of trainers' sizes.",
    "pauses_total": "Pauses of trainers at changes of size.",
    "pause_seconds_total": "Time that trainers paused.",
    "lives_lost_total": "Times that a trainer lost its last node and wrote no checkpoint then.",
    "steps_lost_total": (
        "Steps that trainers make again after that, since their last checkpoints; not the step in "
        "flight that survivors of a smaller loss repeat."
    ),
    "give_backs_total": "Nodes released for ordinary jobs, taken or not.",
    "back_off_level": "Level of back-off; 0: none.",
    "pilots_requested_total": "Pilots that the batch system was asked for.",
    "pilots_stayed_pending_total": (
        "Of these, pilots that were pending for longer than a cycle of the scheduler."
    ),
    "pilots_staying_pending": "Pilots that are pending for longer than a cycle of the scheduler.",
    "harm_slo_seconds": "The promise: a node is free for a job this soon.",
    "harm_slo_ratio": "The share of nodes for which the promise is to hold.",
    "batch_system_known": "1 if the last poll was complete.",
    "journal_writable": "0 while decisions cannot be journalled.",
    "state_disk_bytes": "Size of the disk with the state directory; 0: not known.",
    "state_disk_free_bytes": "Bytes of it that are free.",
    "nodes_slow": "Nodes remembered as slow.",
    "nodes_cooling": "Nodes not used because workers failed there, or pilots left them unusable.",
    "cut_trainers": "Trainers with nodes apart (BFT-1340).",
    "stragglers_found_total": "Workers found persistently slow.",
    "stragglers_replaced_total": "Stragglers replaced by another node.",
    "trainers_without_progress": "Trainers that start again and again and keep no progress.",
    "mute_pilots": "Pilots in a row that ended before their agents spoke (BFT-1331).",
    "vain_trainers": "Trainers that used up many pilots without a step (BFT-1311).",
    "unreachable_agents": "Agents that are not heard and did not say that they leave.",
    "left_out": "Trainers, jobs and nodes left out of decisions because they fail on them.",
    "decision_gap_ratio": "A better decision may be worth so much more; 0: this is the best.",
    "failed_decisions_total": "Failures of decisions, which were repeated without their cause.",
    "sleeps_total": "Times that the daemon did not run for 2 s or longer (BFT-1318).",
    "slept_seconds_total": "Time in which the daemon did not run then.",
    "controller_requests_allowed_per_second": "Limit of requests for all polls together.",
}
_NODE_TIME: Final = (
    "Time of nodes with a pilot, by its use: trained; redone, until a trainer was as far as it had "
    "been; warm-up, from the start until a worker trained; idle, without a trainer."
)

# They would add a useless series per counter. (The library's function has no hints.)
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """One metric at the time of a scrape."""

    name: str  # bftrainer_..., ending in its unit, or in _total for counters
    meaning: str
    value: float = 0.0
    labels: tuple[str, ...] = ()  # names of those in ``by_labels``
    by_labels: tuple[tuple[tuple[str, ...], float], ...] = ()  # instead of ``value``


Source = Callable[[], Iterable[MetricSample]]


class MetricsRegistry:
    """The registry of one daemon."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, registry=self._registry, buckets=BUCKETS_S)
        self._decision_seconds = histogram(
            "bftrainer_decision_seconds", "Duration of a decision.", buckets=_DECISION_BUCKETS_S
        )
        self._poll_seconds = histogram(
            "bftrainer_poll_seconds",
            "Duration of a poll of the batch system, answered or not, with its handling.",
        )
        # Of a daemon that answers and is stuck, these alone stand still.
        self._polled, self._decided = map(self._timestamp, ("poll", "decision"))
        self._hand_over_seconds = histogram(
            "bftrainer_hand_over_seconds",
            "From our release or the batch system's signal until the node was free for a job; for "
            "one that lost a scheduler cycle by having to preempt, until it started.",
            ["how"],
        )
        self._process_free_seconds = histogram(
            "bftrainer_process_free_seconds",
            "From our order or the batch system's signal until a poll showed the pilot's job gone.",
        )
        self._late = counter(
            "bftrainer_hand_overs_late_total",
            "Measured hand-overs that took longer than bftrainer_harm_slo_seconds.",
        )
        self._unmeasured = counter(
            "bftrainer_hand_overs_unmeasured_total", "Hand-overs with an unknown beginning."
        )
        self._vain = counter(
            "bftrainer_vain_give_backs_total",
            "Nodes released for a job that did not take them.",
            ["why"],
        )
        self._preemption_counters(counter)
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
        for kind in (OF_PILOT, OF_JOB):
            self._left.labels(kind)
            self._unusable.labels(kind)
        for how in How:  # always exported, because alerts need existing series
            self._hand_over_seconds.labels(how.value)
        for why in Why:
            self._vain.labels(why.value)

    def _preemption_counters(self, counter: Callable[[str, str], Counter]) -> None:
        self._preemptions = counter(
            "bftrainer_preemptions_total",
            "Nodes that ordinary jobs got because the batch system ended a pilot.",
        )
        self._cycles_lost = counter(
            "bftrainer_cycles_lost_total",
            "Jobs that had to preempt pilots through backfill, which starts them a cycle later.",
        )
        self._cycle_seconds_lost = counter(
            "bftrainer_cycle_seconds_lost_total",
            "Time that these jobs waited from the preemption until they started.",
        )
        self._taken = counter(
            "bftrainer_pilots_taken_total",
            "Pilots that the batch system ended without any job seen on their node.",
        )

    def _timestamp(self, what: str) -> Gauge:
        name = f"bftrainer_last_{what}_timestamp_seconds"
        meaning = f"When the last {what} was complete; 0: none was."
        return Gauge(name, meaning, registry=self._registry)

    def add(self, source: Source) -> None:
        """Call this source at every scrape, too."""
        self._registry.register(_Asked(source))

    def polled(self, took_s: float) -> None:
        """Note that the outcome of a poll was handled."""
        self._poll_seconds.observe(took_s)
        self._polled.set_to_current_time()

    def decided(self, took_s: float) -> None:
        """Note that a decision was carried out."""
        self._decision_seconds.observe(took_s)
        self._decided.set_to_current_time()

    def settled(self, records: HarmRecords, limit_s: float) -> None:
        """Count what the harm monitor has settled; ``limit_s``: of the promise.

        ``vain``: nodes released for a job that no job took. ``taken``: pilots that others ended,
        without a job seen that it was for.
        """
        for hand_over in records.hand_overs:
            if hand_over.how is How.PREEMPTED:
                self._preemptions.inc()
            if hand_over.delay_s is None:
                self._unmeasured.inc()
            else:
                self._hand_over_seconds.labels(hand_over.how.value).observe(hand_over.delay_s)
                self._late.inc(hand_over.delay_s > limit_s)
        for cycle in lost_cycles(records.hand_overs):
            self._cycles_lost.inc()
            self._cycle_seconds_lost.inc(cycle.lost_s)
        for vain in records.vain:
            self._vain.labels(vain.why.value).inc()
        self._taken.inc(len(records.taken))
        for departure in records.left:
            if departure.took_s is not None:
                self._process_free_seconds.observe(departure.took_s)
        # A host that several pilots left in the same look counts once.
        n_left = sum(not departure.is_one_more for departure in records.left)
        self._left.labels(OF_PILOT).inc(n_left)
        self._left.labels(OF_JOB).inc(records.ordinary_left)
        for event in records.unusable:
            kind = OF_JOB
            if event.pilot_id:
                kind = OF_PILOT
            self._unusable.labels(kind).inc()

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
    family: Metric
    if figure.name.endswith(_TOTAL):
        family = CounterMetricFamily(figure.name, figure.meaning, labels=figure.labels)
    else:
        family = GaugeMetricFamily(figure.name, figure.meaning, labels=figure.labels)
    if not figure.labels:
        family.add_metric((), figure.value)
    for values, count in figure.by_labels:
        family.add_metric(values, count)
    return family


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
        "nodes_idle": status.nodes_idle,
        "nodes_held": status.nodes_held,
        "nodes_requested": status.nodes_requested,
        "decisions_total": status.decisions,
        "rescales_total": status.rescales,
        "give_backs_total": status.give_backs,
        "batch_system_known": status.observed == "present",
        **values,
    }
    samples = [_sample(name, float(value)) for name, value in values.items()]
    if polling is not None:
        allowed_per_s = polling.total_per_minute / 60.0
        samples.append(_sample("controller_requests_allowed_per_second", allowed_per_s))
    trainers = {str(state): states[state] for state in TrainerState}
    samples.append(_by_label("trainers", "Trainers.", "state", trainers))
    samples.append(
        _by_label(
            "refused_total",
            "Connections and messages to the agents' port that were refused.",
            "kind",
            {kind: refused.get(kind, 0) for kind in REFUSALS},
        )
    )
    if polling is not None:
        for name, meaning, counts in (
            ("controller_requests", "Requests to the batch system's controller.", polling.requests),
            ("hook_relays", "What relays of the hook told, and what was refused.", polling.told),
        ):
            totals = {count.kind: count.total for count in counts}
            samples.append(_by_label(f"{name}_total", meaning, "kind", totals))
    return tuple(samples)


def _sample(name: str, value: float) -> MetricSample:
    return MetricSample(name=f"bftrainer_{name}", meaning=MEANINGS[name], value=value)


def _by_label(name: str, meaning: str, label: str, counts: Mapping[str, int]) -> MetricSample:
    return MetricSample(
        name=f"bftrainer_{name}",
        meaning=meaning,
        labels=(label,),
        by_labels=tuple(((value,), float(count)) for value, count in counts.items()),
    )


def use_figures(used_s: Mapping[tuple[UserAccount, Use], float]) -> tuple[MetricSample, ...]:
    """Return how the time of nodes was used; every use is always exported."""
    sums = dict.fromkeys(get_args(Use), 0.0)
    for (_, use), seconds in used_s.items():
        sums[use] += seconds
    by_use = tuple(((_word(use),), seconds) for use, seconds in sums.items())
    name = "bftrainer_node_seconds_total"
    return (MetricSample(name=name, meaning=_NODE_TIME, labels=("use",), by_labels=by_use),)


def user_figures(
    records: Iterable[TrainerRecord],
    training: Mapping[UserAccount, int],
    used_s: Mapping[tuple[UserAccount, Use], float],
    steps_lost: Mapping[UserAccount, int],
) -> tuple[MetricSample, ...]:
    """Return what users and accounts have: four metrics for each pair of them.

    Args:
        records: of trainers; those that have ended are not counted.
        training: nodes.
        used_s: node-seconds by their use.
        steps_lost: as in ``MEANINGS``.
    """
    states: collections.Counter[tuple[str, ...]] = collections.Counter()
    for record in records:
        if not record.state.is_final:
            states[record.spec.user, record.spec.account, str(record.state)] += 1
    uses_s: dict[tuple[str, ...], float] = {}
    for (account, use), seconds in used_s.items():
        uses_s[*account, _word(use)] = seconds
    return (
        _by_user("trainers", "Trainers that have not ended.", ("state",), states),
        _by_user("nodes_training", MEANINGS["nodes_training"], (), training),
        _by_user("node_seconds_total", _NODE_TIME, ("use",), uses_s),
        _by_user("steps_lost_total", MEANINGS["steps_lost_total"], (), steps_lost),
    )


def _by_user(
    name: str,
    meaning: str,
    labels: tuple[str, ...],
    counts: Mapping[tuple[str, ...], float] | Mapping[UserAccount, float],
) -> MetricSample:
    """Return a metric whose keys are user, account and what ``labels`` names."""
    return MetricSample(
        name=f"bftrainer_user_{name}",
        meaning=meaning,
        labels=("username", "account", *labels),
        by_labels=tuple((key, float(count)) for key, count in counts.items()),
    )


def _word(use: Use) -> str:
    return use.removesuffix("_s").replace("_", "-")
