"""Decisions for timelines, without a daemon."""

from __future__ import annotations

from collections.abc import Mapping

from bftrainer.model.cluster import Node, NodeState, Snapshot
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Plan, Settings
from bftrainer.model.timeline import USES, NodeUse, TimelineView, pieced
from tests.support.snapshots import T0, snapshot

PLAN = Plan(
    assignment={},
    claims=(),
    releases=(),
    pool=(),
    not_used={},
    reserve=(),
    allocation=None,
    memory=Memory(),
)


def input_of(
    seen: Snapshot,
    *pilots: PilotView,
    at_s: float = T0,
    training: Mapping[str, str] | None = None,
) -> DecisionInput:
    return DecisionInput(
        now_s=at_s,
        snapshot=seen,
        is_new_snapshot=True,
        pilots=pilots,
        trainers=(),
        settings=Settings(),
        memory=Memory(),
        training=training or {},
    )


def nodes(**states: NodeState) -> Snapshot:
    return snapshot([Node(name=name, state=state) for name, state in states.items()])


def pilot(node: str, *, is_held: bool = True) -> PilotView:
    return PilotView(pilot_id=f"p-{node}", node=node, requested_s=T0, is_held=is_held)


def trained(at_s: float, **trainers: str) -> DecisionInput:
    """Nodes on which trainers train; "": an idle one."""
    seen = nodes(
        **{n: NodeState.ALLOCATED if who else NodeState.IDLE for n, who in trainers.items()}
    )
    training = {node: who for node, who in trainers.items() if who}
    return input_of(seen, *map(pilot, training), at_s=at_s, training=training)


def uses_now(found: TimelineView) -> dict[str, tuple[NodeUse, str]]:
    """Piece together what each node is used for."""
    return named(found, pieced((), found))


def named(found: TimelineView, states: list[tuple[int, str]]) -> dict[str, tuple[NodeUse, str]]:
    pairs = zip(found.nodes, states, strict=True)
    return {name: (USES[use], who) for name, (use, who) in pairs}
