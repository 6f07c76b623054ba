"""Samples the use of every node, from snapshots and trainer views. Pure.

The snapshots are the demonstration's own, so that offered and harvested time is not measured by
the daemon, which is being judged. Called by ``watch`` for every sample and by ``summary`` and
``picture`` at the end.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot
from bftrainer.model.views import TrainerView


class Use(enum.StrEnum):
    """The use of a node at an instant; all but the first two count as offered."""

    ORDINARY = "ordinary"  # somebody else's job is on it
    AWAY = "away"  # down, drained, reserved or unknown
    TRAINING = "training"  # a member of a trainer's generation
    STARTING = "starting"  # held, and its worker is on its way in
    HELD = "held"  # held without a worker: just come, or leaving
    FREE = "free"  # idle and not ours

    @property
    def is_offered(self) -> bool:
        """Whether the node is idle as far as ordinary jobs go."""
        return self not in (Use.ORDINARY, Use.AWAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """One node at one instant."""

    node: str
    use: Use
    trainer_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All nodes at one instant; holds until the next sample."""

    at_s: float
    nodes: tuple[NodeUse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySpan:
    """A stretch of time in which a node did the same thing."""

    node: str
    start_s: float
    end_s: float
    use: Use
    trainer_id: str = ""

    @property
    def length_s(self) -> float:
        """How long it lasted."""
        return self.end_s - self.start_s


def sample(snapshot: Snapshot, trainers: Sequence[TrainerView]) -> Sample | None:
    """Return the use of every node; None when the batch system did not say."""
    if snapshot.nodes is None or snapshot.jobs is None:
        return None
    on_node = {
        node: job
        for job in sorted(snapshot.jobs, key=lambda j: j.is_ordinary)  # ordinary jobs win
        if job.state in (JobState.RUNNING, JobState.COMPLETING)
        for node in job.nodes
    }
    member = {n: t.record.trainer_id for t in trainers for n in t.observed_nodes}
    joining = {n: t.record.trainer_id for t in trainers for n in t.requested_nodes}
    return Sample(
        at_s=snapshot.taken_at_s,
        nodes=tuple(_use(node, on_node.get(node.name), member, joining) for node in snapshot.nodes),
    )


def _use(node: Node, job: Job | None, member: dict[str, str], joining: dict[str, str]) -> NodeUse:
    name = node.name
    if job is not None and job.is_ordinary:
        return NodeUse(node=name, use=Use.ORDINARY)
    if job is not None:
        if name in member:
            return NodeUse(node=name, use=Use.TRAINING, trainer_id=member[name])
        if name in joining:
            return NodeUse(node=name, use=Use.STARTING, trainer_id=joining[name])
        return NodeUse(node=name, use=Use.HELD)
    if node.state in (NodeState.IDLE, NodeState.PLANNED):
        return NodeUse(node=name, use=Use.FREE)
    # Occupied by something that is not in the queue (any more): nothing we could use.
    is_busy = node.state in (NodeState.ALLOCATED, NodeState.COMPLETING)
    return NodeUse(node=name, use=Use.ORDINARY if is_busy else Use.AWAY)


def spans(samples: Sequence[Sample], end_s: float) -> tuple[ActivitySpan, ...]:
    """Join samples into spans, by node in the order of the first sample and by time."""
    order: dict[str, list[ActivitySpan]] = {}
    for index, one in enumerate(samples):
        until_s = samples[index + 1].at_s if index + 1 < len(samples) else end_s
        if until_s <= one.at_s:
            continue
        for seen in one.nodes:
            row = order.setdefault(seen.node, [])
            start_s = one.at_s
            if row and row[-1].end_s == start_s and _is_same(row[-1], seen):
                start_s = row.pop().start_s
            row.append(
                ActivitySpan(
                    node=seen.node,
                    start_s=start_s,
                    end_s=until_s,
                    use=seen.use,
                    trainer_id=seen.trainer_id,
                )
            )
    return tuple(span for row in order.values() for span in row)


def taken(of: Sequence[ActivitySpan], within_s: float = 1.0) -> tuple[tuple[str, float], ...]:
    """Return node and time of every change from us to an ordinary job.

    On its way out a pilot may leave the node free for an instant (``within_s``).
    """
    found = []
    ours_until_s: dict[str, float] = {}
    for span in of:
        if span.use in (Use.TRAINING, Use.STARTING, Use.HELD):
            ours_until_s[span.node] = span.end_s
        elif span.use is Use.ORDINARY and span.node in ours_until_s:
            until_s = ours_until_s.pop(span.node)
            if span.start_s - until_s <= within_s:
                found.append((span.node, until_s))
    return tuple(found)


def _is_same(span: ActivitySpan, seen: NodeUse) -> bool:
    return (span.use, span.trainer_id) == (seen.use, seen.trainer_id)


def node_seconds(of: Sequence[ActivitySpan], *uses: Use) -> float:
    """Add up the spans of the given uses (all when none is given)."""
    return sum(span.length_s for span in of if not uses or span.use in uses)
