"""Says of each node what it is used for and, if it is not, why."""

from __future__ import annotations

from collections.abc import Mapping

from bftrainer.daemon.explain.nodes import true_cause
from bftrainer.daemon.state import DaemonState
from bftrainer.decide import eligible
from bftrainer.fleet.pilots.pilots import Pilot
from bftrainer.fleet.pilots.refusal_words import waiting
from bftrainer.model.cluster import FREE, Node, NodeState
from bftrainer.model.decision import PoolNode
from bftrainer.model.views import NodeView

HELD, REQUESTED, UNREACHABLE = "held", "requested", "unreachable"  # nodes with a pilot
RESERVE, HELD_OFF, FREE_NODE, BUSY, NOT_OURS = "reserve", "held-off", "free", "busy", "not ours"


class NodeTable:
    """The nodes of the last snapshot, as they are at one moment."""

    def __init__(
        self,
        state: DaemonState,
        *,
        waits: Mapping[str, str],
        cooling: Mapping[str, str],
        slow: Mapping[str, str],
    ) -> None:
        """Collect what all nodes share.

        Args:
            state: of the daemon.
            waits: node -> why its pilot is pending, in the batch system's words.
            cooling: node -> why it gets no pilot for a while, a sentence.
            slow: node -> how slow it is, a sentence.
        """
        self._state, self._plan = state, state.seen.plan
        self._waits, self._cooling, self._slow = waits, cooling, slow
        self._pilots = state.pilots.by_node()
        self._late = state.late.by_node()
        self._pool: dict[str, PoolNode] = {}
        if self._plan is not None:
            self._pool = {node.name: node for node in self._plan.pool}

    def view(self, node: Node) -> NodeView:
        """Return what users see of a node."""
        pilot, pilot_id, trainer_id = self._pilots.get(node.name), "", ""
        if pilot is not None:
            pilot_id = pilot.record.pilot_id
        if self._plan is not None:
            trainer_id = self._plan.assignment.get(node.name, "")
        usable_until_s = None
        if node.name in self._pool:
            usable_until_s = self._pool[node.name].usable_until_s
        use = self._use(node, pilot)
        return NodeView(
            name=node.name,
            state=node.state.value,
            use=use,
            reason=self._reason(node.name, use, pilot),
            node_type=node.node_type,
            gpus=node.gpus,
            trainer_id=trainer_id,
            pilot_id=pilot_id,
            usable_until_s=usable_until_s,
            why_whole=node.why_whole if node.gpus else "",
        )

    def _use(self, node: Node, pilot: Pilot | None) -> str:
        if pilot is not None:
            return self._use_of(pilot)
        if self._plan is not None and node.name in self._plan.reserve:
            return RESERVE
        if node.name in self._state.seen.memory.held_off:
            return HELD_OFF
        if node.state in FREE:
            return FREE_NODE
        if node.state is NodeState.ALLOCATED:
            return BUSY
        return NOT_OURS

    def _use_of(self, pilot: Pilot) -> str:
        agents, pilot_id = self._state.plane.agents, pilot.record.pilot_id
        if pilot_id in agents.away or pilot.unheard_s is not None:
            return UNREACHABLE
        if pilot_id in agents.connected:
            return HELD
        return REQUESTED

    def _reason(self, name: str, use: str, pilot: Pilot | None) -> str:
        """Say why a node is not used, or what its pilot waits for; "": there is nothing to say."""
        state = self._state
        if name in self._late:
            return self._late[name]
        if name in self._waits and pilot is not None:
            return f"Pilot {pilot.record.pilot_id} is queued: {waiting(self._waits[name])}."
        reason = ""
        if self._plan is not None:
            reason = self._plan.not_used.get(name, "")
            if use == RESERVE:
                reason = true_cause(reason, self._plan, state.in_force.settings)
        reason = reason or self._cooling.get(name, "")
        if not reason and state.seen.given is not None:
            reason = eligible.why_unused(state.seen.given, name)
        return reason or self._slow.get(name, "")
