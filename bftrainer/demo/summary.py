"""Computes the ``Summary`` of spans, journal facts, delays and accuracies. Pure.

``docs/reference/cli.md`` defines the figures. Called by ``run``, shown by ``report``, written as
summary.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bftrainer.demo.journal_facts import JournalFacts
from bftrainer.demo.samples import ActivitySpan, Use, node_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """How a quantity is distributed; all None when there is nothing."""

    n: int
    p50: float | None
    p95: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeconds:
    """Where the nodes' time went, node-seconds."""

    total: float
    ordinary: float
    offered: float  # harvested + lost + unused
    harvested: float
    lost: float
    lost_starting: float
    lost_pausing: float
    lost_held: float
    unused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerResult:
    """The result of one trainer."""

    trainer_id: str
    name: str
    state: str
    reason: str
    epochs: int
    samples: int
    finished_after_s: float | None
    node_seconds: float
    rescales: int
    parks: int
    accuracy: float | None
    fixed_accuracy: float | None  # the same script, alone on one node
    fixed_wall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdinaryJobsSummary:
    """The effect on ordinary jobs."""

    jobs: int  # that started
    delay_s: Quantiles
    wait_s: Quantiles
    method: str  # how the delay was found


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All results of the demonstration."""

    batch_system: str
    nodes: int
    seed: int
    live_s: float
    node_seconds: NodeSeconds
    utilisation: float | None  # U = harvested / offered
    rescales: int
    grows: int
    shrinks: int
    pause_s: Quantiles
    parks: int
    resumes: int
    give_backs: int
    preemptions: int
    decision_ms: Quantiles
    worker_failures: tuple[str, ...]
    trainers: tuple[TrainerResult, ...]
    background: OrdinaryJobsSummary


def quantiles(values: Sequence[float]) -> Quantiles:
    """Return median, 95th percentile (nearest rank) and maximum."""
    ordered = sorted(values)
    if not ordered:
        return Quantiles(n=0, p50=None, p95=None, max=None)

    def at(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Quantiles(n=len(ordered), p50=at(0.5), p95=at(0.95), max=ordered[-1])


def account(spans: Sequence[ActivitySpan], facts: JournalFacts) -> NodeSeconds:
    """Split the time of all nodes; pauses are taken off what was harvested.

    A pause is counted for every member of the new generation although only the worst
    of them waited that long: the harvest is never overstated.
    """
    member = node_seconds(spans, Use.TRAINING)
    pausing = min(member, sum(r.pause_s * r.size for r in facts.rescales))
    starting, held = node_seconds(spans, Use.STARTING), node_seconds(spans, Use.HELD)
    unused = node_seconds(spans, Use.FREE)
    lost = starting + held + pausing
    return NodeSeconds(
        total=node_seconds(spans),
        ordinary=node_seconds(spans, Use.ORDINARY, Use.AWAY),
        offered=member - pausing + lost + unused,
        harvested=member - pausing,
        lost=lost,
        lost_starting=starting,
        lost_pausing=pausing,
        lost_held=held,
        unused=unused,
    )


def background(
    waits_s: Mapping[str, float], delays_s: Mapping[str, float], method: str
) -> OrdinaryJobsSummary:
    """Sum up the ordinary jobs; a job that came out early was not delayed."""
    return OrdinaryJobsSummary(
        jobs=len(waits_s),
        delay_s=quantiles([max(0.0, d) for d in delays_s.values()]),
        wait_s=quantiles(list(waits_s.values())),
        method=method,
    )


def summarise(
    *,
    batch_system: str,
    n_nodes: int,
    seed: int,
    live_s: float,
    spans: Sequence[ActivitySpan],
    facts: JournalFacts,
    preemptions: int,
    trainers: Sequence[TrainerResult],
    ordinary: OrdinaryJobsSummary,
) -> Summary:
    """Put everything together."""
    split = account(spans, facts)
    rescales = facts.rescales
    return Summary(
        batch_system=batch_system,
        nodes=n_nodes,
        seed=seed,
        live_s=live_s,
        node_seconds=split,
        utilisation=split.harvested / split.offered if split.offered > 0 else None,
        rescales=len(rescales),
        grows=sum(r.size > r.size_before for r in rescales),
        shrinks=sum(r.size < r.size_before for r in rescales),
        pause_s=quantiles([r.pause_s for r in rescales]),
        parks=len(facts.parks),
        resumes=len(facts.resumes),
        give_backs=len(facts.give_backs),
        preemptions=preemptions,
        decision_ms=quantiles(facts.decisions_ms),
        worker_failures=facts.worker_failures,
        trainers=tuple(trainers),
        background=ordinary,
    )
