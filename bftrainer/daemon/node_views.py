"""Says of each node what it is used for and, if it is not, why.

A node that lends its GPUs one by one is one node with its parts: plans and pilots name those
``n1/0``, the snapshot the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from bftrainer.daemon.explain.nodes import true_cause
from bftrainer.daemon.state import DaemonState
from bftrainer.decide import eligible
from bftrainer.fleet.pilots.pilots import Pilot
from bftrainer.fleet.pilots.refusal_words import waiting
from bftrainer.model.cluster import FREE, PART_MARK, Node, NodeState, node_of
from bftrainer.model.decision import PoolNode
from bftrainer.model.gpu_shares import HeldPart, gpu_counts, is_up, part_number
from bftrainer.model.lookups import by_name
from bftrainer.model.parts import NodePart
from bftrainer.model.trainer import GpuLoad
from bftrainer.model.views import LentGpuTotals, NodeView, PartView, lent_totals, nodes_of

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
        gpu_use: Mapping[str, GpuLoad],
    ) -> None:
        """Collect what all nodes share.

        Args:
            state: of the daemon.
            waits: node -> why its pilot is pending, in the batch system's words.
            cooling: node -> why it gets no pilot for a while, a sentence.
            slow: node -> how slow it is, a sentence.
            gpu_use: node -> what its trainer's GPUs there do, of late.
        """
        self._state, self._plan = state, state.seen.plan
        self._waits, self._cooling, self._slow = waits, cooling, slow
        self._gpu_use = gpu_use
        self._pilots = state.pilots.by_node()
        self._part_pilots = _part_pilots(state.pilots.pilots.values())
        self._late = state.late.by_node()
        self._pool: dict[str, PoolNode] = {}
        if self._plan is not None:
            self._pool = by_name(self._plan.pool)

        self._reserve_counts: Counter[str] = Counter()  # of parts, by node
        self._held_off_counts = Counter(map(node_of, state.seen.memory.held_off))
        # Node -> why parts of it that no pilot has are not used.
        self._part_reasons: dict[str, dict[str, None]] = {}
        if self._plan is not None:
            self._reserve_counts.update(map(node_of, self._plan.reserve))
            for name, reason in self._plan.not_used.items():
                if PART_MARK in name and name not in self._pilots:
                    self._part_reasons.setdefault(node_of(name), {})[reason] = None

    def view(self, node: Node) -> NodeView:
        """Return what users see of a node."""
        parts = self._part_pilots.get(node.name, ())
        if parts or (node.lends and node.name not in self._pilots):
            return self._parted(node, parts)
        pilot, pilot_id = self._pilots.get(node.name), ""
        if pilot is not None:
            pilot_id = pilot.record.pilot_id
        use = self._use(node, pilot)
        return NodeView(
            name=node.name,
            state=node.state.value,
            use=use,
            reason=self._reason(node.name, use, pilot),
            node_type=node.node_type,
            gpus=node.gpus,
            trainer_id=self._trainer_on(node.name),
            pilot_id=pilot_id,
            usable_until_s=self._usable_until_s(node.name),
            gpu_use=self._gpu_use.get(node.name),
            why_whole=node.why_whole if node.gpus else "",
        )

    def _parted(self, node: Node, part_pilots: Sequence[tuple[NodePart, Pilot]]) -> NodeView:
        """Return the view of a node that lends its GPUs one by one."""
        views: list[PartView] = []
        held_parts: list[HeldPart] = []
        ends_s: list[float] = []
        for part, pilot in part_pilots:
            view = self._part(part, pilot)
            views.append(view)
            held_parts.append(HeldPart(part=part, is_started=pilot.start_s is not None))
            if view.usable_until_s is not None:
                ends_s.append(view.usable_until_s)
        parts = tuple(views)
        counts = gpu_counts(node, held_parts)
        n_free = sum([count.free for count in counts])
        use = self._use_of_parts(node, parts, n_free)
        return NodeView(
            name=node.name,
            state=node.state.value,
            use=use,
            reason=self._reason_of_parted(node.name, use, has_free=bool(n_free)),
            node_type=node.node_type,
            gpus=node.gpus,
            trainer_id=_shared_by_all([part.trainer_id for part in parts]),
            pilot_id=_shared_by_all([part.pilot_id for part in parts]),
            usable_until_s=min(ends_s, default=None),
            gpu_counts=counts,
            parts=parts,
            why_whole=node.why_whole,
        )

    def _part(self, part: NodePart, pilot: Pilot) -> PartView:
        use = self._use_of(pilot)
        return PartView(
            name=part.name,
            gpu_type=part.gpu_type,
            gpus=part.gpus,
            use=use,
            reason=self._reason(part.name, use, pilot),
            trainer_id=self._trainer_on(part.name),
            pilot_id=pilot.record.pilot_id,
            usable_until_s=self._usable_until_s(part.name),
            gpu_use=self._gpu_use.get(part.name),
        )

    def _use_of_parts(self, node: Node, parts: Collection[PartView], n_free: int) -> str:
        """Return the use of a node by its parts: what most concerns us of what is there."""
        uses = {part.use for part in parts}
        for use in (HELD, UNREACHABLE, REQUESTED):
            if use in uses:
                return use
        if not is_up(node):
            return NOT_OURS
        if not n_free:
            return BUSY
        reserve: Collection[str] = ()
        if self._plan is not None:
            reserve = self._plan.reserve
        if node.name in reserve or self._reserve_counts[node.name] >= n_free:
            return RESERVE
        held_off = self._state.seen.memory.held_off
        if node.name in held_off or self._held_off_counts[node.name] >= n_free:
            return HELD_OFF
        return FREE_NODE

    def _reason_of_parted(self, name: str, use: str, *, has_free: bool) -> str:
        """Say why nothing, or not all, of a node is used; what holds of a part, it tells itself."""
        reason = self._reason(name, use, None)
        if not reason and has_free:
            reasons = self._part_reasons.get(name, {})
            if use == RESERVE and self._plan is not None:
                settings = self._state.in_force.settings
                reasons = {true_cause(text, self._plan, settings): None for text in reasons}
            reason = " ".join(reasons)
        return reason

    def _trainer_on(self, name: str) -> str:
        if self._plan is None:
            return ""
        return self._plan.assignment.get(name, "")

    def _usable_until_s(self, name: str) -> float | None:
        if name not in self._pool:
            return None
        return self._pool[name].usable_until_s

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


def _part_pilots(pilots: Iterable[Pilot]) -> dict[str, list[tuple[NodePart, Pilot]]]:
    """Return the pilots of parts with these, by node, in the order of their numbers."""
    by_node: dict[str, list[tuple[NodePart, Pilot]]] = {}
    for pilot in pilots:
        part = pilot.record.part
        if part is not None and PART_MARK in part.name:
            by_node.setdefault(part.node, []).append((part, pilot))
    for part_pilots in by_node.values():
        if len(part_pilots) > 1:
            part_pilots.sort(key=lambda pair: part_number(pair[0].name))
    return by_node


def _shared_by_all(ids: Sequence[str]) -> str:
    """Return the id that all parts of a node have; "": they have several, or none."""
    if len(set(ids)) == 1:
        return ids[0]
    return ""


class LentCounts:
    """Counts of nodes and of GPUs where pilots may have parts of nodes."""

    def __init__(self, state: DaemonState) -> None:
        self._nodes, held_ids = state.seen.nodes, state.plane.agents.held
        self._n_held, self._n_pilots = len(held_ids), len(state.pilots.pilots)
        self._held_names: list[str] = []  # of parts
        self._requested_names: list[str] = []
        self._held_gpus = self._requested_gpus = self._unstarted_gpus = 0
        for pilot_id, pilot in state.pilots.pilots.items():
            part = pilot.record.part
            if part is None or PART_MARK not in part.name:
                continue
            if pilot_id in held_ids:
                self._held_names.append(part.name)
                self._held_gpus += part.gpus
            else:
                self._requested_names.append(part.name)
                self._requested_gpus += part.gpus
            if pilot.start_s is None:
                self._unstarted_gpus += part.gpus

    def n_nodes(self) -> tuple[int, int]:
        """Return how many nodes are held in all or part, and how many others are requested."""
        n_held, held_nodes = nodes_of(self._held_names)
        _, requested_nodes = nodes_of(self._requested_names)
        n_whole_held = self._n_held - len(self._held_names)
        n_whole_requested = self._n_pilots - self._n_held - len(self._requested_names)
        return n_whole_held + n_held, n_whole_requested + len(requested_nodes - held_nodes)

    def totals(self) -> LentGpuTotals | None:
        """Return the sums over all nodes; None: no node lends its GPUs one by one."""
        return lent_totals(self._nodes, self._held_gpus, self._requested_gpus, self._unstarted_gpus)
