"""The daemon's state → figures for Prometheus. Pure.

``bftrainer.service`` asks at every scrape, with what ``bftrainer status`` shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import PollingView, StatusView
from bftrainer.observability.metrics import MetricSample

# What ``wire.refusals`` counts at the daemon; a series that does not exist cannot be alerted on.
REFUSALS = (
    "stranger", "handshake-failed", "malformed", "impostor", "before-hello", "fenced", "later",
    "not-its-worker", "not-its-copy", "not-believed", "unknown", "failed",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a scrape wants to know beyond the status."""

    pool_nodes: int
    pauses: int
    paused_s: float
    back_off_level: int
    slow_nodes: int = 0
    cooling_nodes: int = 0
    stragglers_found: int = 0
    stragglers_replaced: int = 0
    can_write_down: bool = True
    left_out: int = 0
    failed_decisions: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)  # of agents, by kind


def daemon_figures(status: StatusView, extras: Extras) -> tuple[MetricSample, ...]:
    """Return one figure for each thing worth a graph."""
    states = Counter(view.record.state for view in status.trainers)
    return (
        _figure("nodes", "Nodes that the batch system shows.", status.nodes_total),
        _figure("idle_nodes", "Nodes without any job.", status.nodes_idle),
        _figure("pool_nodes", "Nodes that the last decision could use.", extras.pool_nodes),
        _figure("held_nodes", "Nodes with a pilot whose agent answers.", status.nodes_held),
        _figure("requested_nodes", "Nodes with a pilot that is not held.", status.nodes_requested),
        _figure("decisions_total", "Decisions that changed something.", status.decisions),
        _figure("rescales_total", "Changes of size of trainers.", status.rescales),
        _figure("pauses_total", "Pauses of trainers at a change of size.", extras.pauses),
        _figure("pause_seconds_total", "Time that trainers paused.", extras.paused_s),
        _figure(
            "give_backs_total", "Nodes given back for ordinary jobs, taken or not.",
            status.give_backs,
        ),
        _figure(
            "back_off_level", "How far the daemon backs off; 0 is not at all.",
            extras.back_off_level,
        ),
        _figure(
            "batch_system_known", "1 when the last look was complete.",
            float(status.observed == "present"),
        ),
        _figure(
            "journal_writable", "0 while decisions cannot be written down.",
            float(extras.can_write_down),
        ),
        _figure("slow_nodes", "Nodes that are remembered as slow.", extras.slow_nodes),
        _figure(
            "cooling_nodes", "Nodes left alone because workers failed there.",
            extras.cooling_nodes,
        ),
        _figure(
            "stragglers_found_total", "Workers found persistently slow.", extras.stragglers_found
        ),
        _figure(
            "stragglers_replaced_total", "Of these, replaced by another node.",
            extras.stragglers_replaced,
        ),
        *_harmless(extras),
        *_polling(status.polling),
        MetricSample(
            name="bftrainer_trainers",
            meaning="Trainers.",
            label="state",
            by_label=tuple((str(state), float(states[state])) for state in TrainerState),
        ),
    )  # fmt: skip


def _harmless(extras: Extras) -> tuple[MetricSample, ...]:
    """Return what was left out or refused so that others are not harmed."""
    return (
        _figure(
            "left_out", "Trainers, jobs and nodes that decisions do without because they fail on"
            " them.", extras.left_out,
        ),
        _figure(
            "failed_decisions_total", "Decisions that were taken again without whoever was at"
            " fault.", extras.failed_decisions,
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
        _figure("looks_total", "Looks at the batch system.", polling.looks),
        _figure(
            "controller_requests_last_minute",
            "Requests to the batch system's controller in the last minute.",
            polling.requests_last_minute,
        ),
        _figure(
            "controller_requests_allowed_per_minute",
            "What all looks together may ask of it in a minute.",
            polling.total_per_minute,
        ),
        MetricSample(
            name="bftrainer_controller_requests_total",
            meaning="Requests to the batch system's controller.",
            label="kind",
            by_label=tuple((asked.kind, float(asked.total)) for asked in polling.requests),
        ),
    )


def _figure(name: str, meaning: str, value: float) -> MetricSample:
    return MetricSample(name=f"bftrainer_{name}", meaning=meaning, value=float(value))
