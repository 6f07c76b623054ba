"""The daemon's state as metrics for Prometheus. Pure.

``bftrainer.daemon.service`` calls it at every scrape, with the data of ``bftrainer status``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from bftrainer.daemon.metrics import MetricSample
from bftrainer.model.trainer import TrainerState
from bftrainer.model.views import PollingView, StatusView

# Counted by ``wire.refused_messages``; always exported, because alerts need existing series.
REFUSALS = (
    "stranger", "handshake-failed", "malformed", "impostor", "before-hello", "superseded", "fenced",
    "later", "not-its-worker", "not-its-copy", "not-believed", "unknown", "failed",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a scrape needs beyond the status."""

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
    states = Counter(view.record.state for view in status.trainers)
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
