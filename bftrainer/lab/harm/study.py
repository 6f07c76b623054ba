"""The whole question: which segments are played with which settings, and what comes of it.

How much is played follows from the site, the log and ``HarmChoices`` alone, so that a seed gives
the same figures on every machine; it is chosen to take some minutes on two processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bftrainer.lab.harm.experiment import play_segment
from bftrainer.lab.harm.findings import HarmFindings, findings
from bftrainer.lab.harm.replica import Replica
from bftrainer.lab.harm.segments import (
    BLOCKS,
    LEND,
    LogPart,
    Segment,
    Variant,
    block_s,
    segment,
    stretches,
)
from bftrainer.lab.parallel import play_each
from bftrainer.lab.site.arms import Span
from bftrainer.lab.site.machine import SchedulerSettings
from bftrainer.model.parts import Lend
from bftrainer.site.policy.model import SitePolicy

BUDGET_S = 330.0  # of processor time
OWN_SHARE = 0.5  # of it for the settings as they are, if others are tried
# Processor time of a simulated hour (measured: 64 to 100 nodes, 80 to 95 jobs an hour, of which 4
# to 35 wait).
RECHECKS, PER_JOB = 720.0, 5.0  # decisions an hour, and more for each job
# Of a decision, and more for each node and for each job that waits.
DECISION_S, NODE_S, QUEUED_S = 1.2e-3, 1.25e-5, 7e-5
SHARED = 1.2  # times as long where nodes are shared
HOUR_S = 3600.0
N_VARIANTS = 8  # settings that are tried, at most
# Where jobs share nodes, whole nodes are held beside "lend: auto", for so much processor time more.
PROPOSAL_S = 100.0
MORE_RESERVE = 20  # one more idle node is kept for so many nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmChoices:
    """The ways to ask."""

    policy_values: Mapping[str, Any] = field(default_factory=dict)  # where not the defaults
    worker_start_s: float = 5.0  # from an agent's hello to the first step
    hours: float | None = None  # of the log to play beside bftrainer; None: by ``BUDGET_S``
    has_settings: bool = True  # others are tried
    is_closer: bool = False  # submissions were drawn closer
    watts: Mapping[str, float] = field(default_factory=dict)  # of a node, by type; "": the others
    seed: int = 1
    lend: Lend = Lend.NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmStudy:
    """The answer."""

    replica: Replica
    choices: HarmChoices
    stretches: tuple[LogPart, ...]  # of the span
    findings: HarmFindings


def hour_cost_s(replica: Replica, lend: Lend = Lend.NODES) -> float:
    """Return about how much processor time an hour beside bftrainer takes."""
    slurm = replica.slurm
    jobs_per_h = len(replica.jobs) / max(1.0, replica.span_s / HOUR_S)
    waited_s = sum(job.start_s - job.spec.submit_s for job in replica.jobs)
    queued = min(waited_s / max(HOUR_S, replica.span_s), slurm.bf_max_job_test)
    decision_s = DECISION_S + NODE_S * _n_lent(replica, lend) + QUEUED_S * queued
    if slurm.capacities:
        decision_s *= SHARED
    return (RECHECKS + PER_JOB * jobs_per_h) * decision_s


def _n_lent(replica: Replica, lend: Lend) -> int:
    """Return how many nodes, or GPUs where they are lent one by one, a decision is about."""
    if lend is Lend.NODES:
        return replica.slurm.n_nodes
    nodes = replica.shared_lending
    if lend is Lend.GPUS:
        nodes = tuple(node for node in replica.lending if node.lends)
    return replica.slurm.n_nodes - len(nodes) + sum(node.gpus for node in nodes)


def study(
    replica: Replica,
    choices: HarmChoices,
    *,
    processes: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> HarmStudy:
    """Play and add up.

    Raises:
        UsageError: BFT-4146, the log is too short.
    """
    parts = parts_of(replica, choices)
    segments = tuple(planned(replica, choices, parts))
    outcomes = play_each(play_segment, segments, processes=processes, on_progress=on_progress)
    return HarmStudy(
        replica=replica,
        choices=choices,
        stretches=parts,
        findings=findings(
            replica,
            outcomes.values(),
            tuple(_counted(replica, stretch) for stretch in parts),
            is_closer=choices.is_closer,
            watts=choices.watts,
            seed=choices.seed,
            lend=choices.lend,
        ),
    )


def _counted(replica: Replica, stretch: LogPart) -> Span:
    """Return the span of a stretch's blocks."""
    length_s = block_s(replica.slurm)
    begin_s = stretch.from_s + length_s
    return begin_s, begin_s + stretch.n_blocks * length_s


def parts_of(replica: Replica, choices: HarmChoices) -> tuple[LogPart, ...]:
    """Return the parts of the log that are played; raises ``UsageError``: it is too short."""
    hours, most_blocks = choices.hours, BLOCKS
    cost_s = hour_cost_s(replica, choices.lend)
    budget_s = BUDGET_S
    if choices.has_settings:
        budget_s *= OWN_SHARE
        each_s = (BUDGET_S - budget_s) / N_VARIANTS
        block_cost_s = cost_s * block_s(replica.slurm) / HOUR_S
        most_blocks = min(BLOCKS, int(each_s / block_cost_s) - 1)  # one is the lead-in
    if hours is None:
        hours = budget_s / cost_s
    return stretches(replica.span_s, replica.slurm, hours, choices.seed, most_blocks)


def planned(replica: Replica, choices: HarmChoices, parts: Sequence[LogPart]) -> Iterator[Segment]:
    """Yield the segments: all with the settings as they are, some with each of the others."""
    values = tuple(sorted(choices.policy_values.items()))
    as_is = Variant(slurm=replica.slurm, policy_values=values, lend=choices.lend)
    tried: tuple[Variant, ...] = ()
    if choices.has_settings:
        tried = variants(as_is)
    for number in range(len(parts)):
        yield _segment(replica, as_is, parts, number, choices)
    if is_proposed(replica, choices):
        auto = replace(as_is, name=LEND, value=Lend.AUTO, lend=Lend.AUTO)
        for number in _with_proposal(replica, parts, choices):
            yield _segment(replica, auto, parts, number, choices)
    if not tried:
        return
    each_s = (1.0 - OWN_SHARE) * BUDGET_S / len(tried)
    for number in _some(replica, parts, each_s, hour_cost_s(replica, choices.lend)):
        for variant in tried:
            yield _segment(replica, variant, parts, number, choices)


def _segment(
    replica: Replica, variant: Variant, parts: Sequence[LogPart], number: int, choices: HarmChoices
) -> Segment:
    return segment(
        replica,
        variant,
        parts[number],
        number,
        worker_start_s=choices.worker_start_s,
        seed=choices.seed,
    )


def is_proposed(replica: Replica, choices: HarmChoices) -> bool:
    """Return whether lend: auto is played, too, where it would lend GPUs that nodes leave."""
    return choices.lend is Lend.NODES and choices.has_settings and bool(replica.shared_lending)


def _with_proposal(
    replica: Replica, parts: Sequence[LogPart], choices: HarmChoices
) -> tuple[int, ...]:
    """Return the numbers of the parts that are played with lend: auto: all that are asked for."""
    if choices.hours is not None:
        return tuple(range(len(parts)))
    return _some(replica, parts, PROPOSAL_S, hour_cost_s(replica, Lend.AUTO))


def _some(
    replica: Replica, parts: Sequence[LogPart], budget_s: float, cost_s: float
) -> tuple[int, ...]:
    """Return the numbers of as many parts as fit a budget, spread evenly; one at least.

    Args:
        replica: the site.
        parts: all of them.
        budget_s: of processor time.
        cost_s: of an hour.
    """
    hours = (parts[0].n_blocks + 1) * block_s(replica.slurm) / HOUR_S
    count = min(len(parts), max(1, round(budget_s / (hours * cost_s))))
    return tuple((2 * k + 1) * len(parts) // (2 * count) for k in range(count))


def variants(base: Variant) -> tuple[Variant, ...]:
    """Return the settings to try, one at a time, without those that are in force."""
    values = dict(base.policy_values)
    policy = SitePolicy(**values)
    reserve = policy.reserve_nodes_per_type + max(1, base.slurm.n_nodes // MORE_RESERVE)
    tried: tuple[tuple[str, float], ...] = (
        ("reserve_nodes_per_type", 0),
        ("reserve_nodes_per_type", reserve),
        ("min_gap_s", 30.0),
        ("min_gap_s", 600.0),
        ("poll_interval_with_hook_s", 5.0),
        ("poll_interval_with_hook_s", 120.0),
    )
    of_policy = []
    for key, value in tried:
        if getattr(policy, key) != value:
            changed_values = tuple(sorted({**values, key: value}.items()))
            of_policy.append(
                replace(base, name=key, value=f"{value:g}", policy_values=changed_values)
            )
    return (*of_policy, *_of_slurm(base, base.slurm))


def _of_slurm(base: Variant, slurm: SchedulerSettings) -> Iterator[Variant]:
    for factor in (0.5, 2.0):
        interval_s = slurm.bf_interval_s * factor
        yield replace(
            base,
            name="bf_interval",
            value=f"{interval_s:g}",
            slurm=replace(slurm, bf_interval_s=interval_s),
        )
