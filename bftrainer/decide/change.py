"""Finds the event between two consecutive situations; there may be none.

Simultaneous changes are one event (BFTrainer paper, section 2.1). An event only determines *when*
to decide; the decision reads the full state (level-triggered).
"""

from __future__ import annotations

from collections.abc import Iterable

from bftrainer.model.cluster import JobState, NodeState, Snapshot
from bftrainer.model.event import Event, Situation

_FREE = (NodeState.IDLE, NodeState.PLANNED)


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
    free = {n.name for n in snapshot.nodes or () if n.state in _FREE}
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
