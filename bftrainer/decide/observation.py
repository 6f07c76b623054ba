"""Updates the decision's memory from observations, and finds the event between two of them. Pure.

Each estimator is a fold over its own part of ``Memory``. The order matters: later ones use the
results of earlier ones. One is here: idle nodes. Those that are idle only between two jobs appear
in one record and are dropped (BFTrainer paper, section 2.1). On Slurm one snapshot suffices,
because a pilot waits behind every ordinary job anyway.

Simultaneous changes are one event (BFTrainer paper, section 2.1). An event only determines *when*
to decide; the decision reads the full state (level-triggered).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bftrainer.decide import (
    borrowers,
    claims,
    cycles,
    end_cost,
    fair_share,
    held_off,
    losses,
    skipped_jobs,
    slow_nodes,
    turns,
    warm_up,
)
from bftrainer.model.census import NodeCensus, census_of
from bftrainer.model.cluster import PART_MARK, Snapshot
from bftrainer.model.decision import DecisionInput, Event, Memory, Situation


def observe(given: DecisionInput, census: NodeCensus) -> Memory:
    """Update the memory with the input; each estimator keeps what no single snapshot shows."""
    # Reserve that other daemons took, by what was idle before
    memory = given.memory
    if census.has_other_daemons or memory.reserve_taken:
        memory = borrowers.observe(memory, given, census)
    if given.is_new_snapshot:
        n_confirming = given.settings.idle_confirmations
        memory = replace(memory, idle_seen=observe_idle(memory.idle_seen, census, n_confirming))
    memory = cycles.observe(memory, given)  # begins of the latest scheduler cycles
    memory = held_off.observe(memory, given, census)  # nodes held off for jobs
    memory = skipped_jobs.observe(memory, given, census)  # that did not start despite free nodes
    memory = claims.observe(memory, given)  # time agents need to connect
    memory = warm_up.observe(memory, given)  # warm-up of nodes
    memory = losses.observe(memory, given)  # how often trainers lose nodes
    memory = slow_nodes.observe(memory, given)  # slow nodes
    memory = fair_share.observe(memory, given)  # what users used
    memory = turns.observe(memory, given)  # trainers that wait
    return end_cost.observe(memory, given)  # duration of pilot ends and starts


def observe_idle(seen: Mapping[str, int], census: NodeCensus, enough: int) -> dict[str, int]:
    """Return in how many snapshots each free node was free, at most ``enough``.

    An unknown node table changes nothing. Without the bound every idle node would change in every
    journalled decision.
    """
    if census.snapshot.nodes is None:
        return dict(seen)
    times_idle: dict[str, int] = {}
    for name in sorted(census.free):
        times_idle[name] = min(seen.get(name, 0) + 1, enough)
    return times_idle


def situation_of(
    snapshot: Snapshot, ours: Iterable[str], trainers: Iterable[str], held: Iterable[str]
) -> Situation:
    """Return the state that a decision reacts to.

    Args:
        snapshot: the last one.
        ours: nodes with a pilot that is not leaving.
        trainers: those that are not final.
        held: pilots with a connected agent.
    """
    census = census_of(snapshot)
    free_gpus: list[str] = []
    for node in snapshot.nodes or ():
        for lent in node.lends:
            free_gpus += [f"{node.name}{PART_MARK}{lent.gpu_type}{k}" for k in range(lent.n_free)]
    return Situation(
        usable=frozenset((*census.free, *ours, *free_gpus)),
        pending=frozenset([job.job_id for job in census.pending_jobs]),
        trainers=frozenset(trainers),
        held=frozenset(held),
    )


def event_between(before: Situation, after: Situation, at_s: float) -> Event | None:
    """Return what changed, or ``None``."""
    if before == after:
        return None
    return Event(
        at_s=at_s,
        joined=_new(before.usable, after.usable),
        left=_new(after.usable, before.usable),
        jobs_arrived=_new(before.pending, after.pending),
        jobs_gone=_new(after.pending, before.pending),
        trainers_arrived=_new(before.trainers, after.trainers),
        trainers_gone=_new(after.trainers, before.trainers),
        agents_arrived=_new(before.held, after.held),
        agents_gone=_new(after.held, before.held),
    )


def _new(before: Iterable[str], after: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(after) - set(before)))
