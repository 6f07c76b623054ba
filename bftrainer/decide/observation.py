"""Updates the decision's memory from observations, and finds the event between two of them. Pure.

Each estimator is a fold over its own part of ``Memory``. The order matters: later ones use the
results of earlier ones. One is here: idle nodes. Those that are idle only between two jobs appear
in one record and are dropped (BFTrainer paper, section 2.1). On Slurm one snapshot suffices,
because a pilot waits behind every ordinary job anyway.

Simultaneous changes are one event (BFTrainer paper, section 2.1). An event only determines *when*
to decide; the decision reads the full state (level-triggered).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from bftrainer.decide import (
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
from bftrainer.model.census import FREE_STATES
from bftrainer.model.cluster import JobState, Snapshot
from bftrainer.model.decision import DecisionInput, Event, Memory, Situation


def observe_idle(seen: Mapping[str, int], snapshot: Snapshot, enough: int) -> dict[str, int]:
    """Return the new counts, capped at ``enough``; an unknown node table changes nothing.

    Without the cap every idle node would change in every journalled decision.
    """
    if snapshot.nodes is None:
        return dict(seen)
    idle = (n.name for n in snapshot.nodes if n.state in FREE_STATES)
    return {name: min(seen.get(name, 0) + 1, enough) for name in idle}


def _count_idle(memory: Memory, given: DecisionInput) -> Memory:
    if not given.is_new_snapshot:
        return memory
    enough = given.settings.idle_confirmations
    return replace(memory, idle_seen=observe_idle(memory.idle_seen, given.snapshot, enough))


# Each maintains an estimate that no single snapshot shows.
ESTIMATORS: tuple[Callable[[Memory, DecisionInput], Memory], ...] = (
    _count_idle,  # number of consecutive snapshots in which each node was idle
    cycles.observe,  # begins of the latest scheduler cycles
    held_off.observe,  # nodes held off for jobs
    skipped_jobs.observe,  # jobs that did not start despite free nodes
    claims.observe,  # time agents need to connect
    warm_up.observe,  # warm-up of nodes
    losses.observe,  # how often trainers lose nodes
    end_cost.observe,  # duration of pilot ends and starts
    slow_nodes.observe,  # slow nodes
    fair_share.observe,  # what users used
    turns.observe,  # trainers that wait
)


def observe(given: DecisionInput) -> Memory:
    """Update the memory with the input."""
    memory = given.memory
    for estimator in ESTIMATORS:
        memory = estimator(memory, given)
    return memory


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
    free = {n.name for n in snapshot.nodes or () if n.state in FREE_STATES}
    jobs = (j for j in snapshot.jobs or () if j.is_ordinary and j.state is JobState.PENDING)
    return Situation(
        usable=frozenset(free.union(ours)),
        pending=frozenset(job.job_id for job in jobs),
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
