"""Parts of nodes as nodes: where pilots take a fixed share of a node, each share is a *slot*. Pure.

Called by ``snapshot`` when the options name a share. Slot ``k`` of node ``n1`` is called ``n1/k``;
everything behind the adapter treats slots as nodes. A pilot keeps its slot (the comment of its
job); the other slots of a node are free as far as what is left of it covers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace

from bftrainer.model.cluster import PART_MARK, Job, Node, NodeLeft, NodeState, Reservation
from bftrainer.model.errors import UsageError

_IN_USE = (NodeState.IDLE, NodeState.PLANNED, NodeState.ALLOCATED, NodeState.COMPLETING)


def names(node: Node, share: NodeLeft) -> tuple[str, ...]:
    """Return the slots of a node."""
    whole = NodeLeft(cpus=node.cpus, memory_mb=node.memory_mb, gpus=node.gpus)
    return tuple(f"{node.name}{PART_MARK}{k}" for k in range(fitting(whole, share)))


def fitting(room: NodeLeft, share: NodeLeft) -> int:
    """Return how many shares fit into a room; what a share does not name is not counted."""
    has, needs = (astuple(one) for one in (room, share))
    counts = [of // each for of, each in zip(has, needs, strict=True) if each > 0]
    return max(0, min(counts, default=0))


def share_of(wished: NodeLeft, nodes: Sequence[Node]) -> NodeLeft:
    """Return the share of a node for a pilot; what was not named is in proportion.

    Raises:
        UsageError: BFT-1288, no node has as much.
    """
    portions = [
        wanted / has
        for wanted, has in (
            (wished.gpus, max((node.gpus for node in nodes), default=0)),
            (wished.cpus, max((node.cpus for node in nodes), default=0)),
            (wished.memory_mb, max((node.memory_mb for node in nodes), default=0)),
        )
        if wanted and has
    ]
    portion = max(portions, default=0.0)
    least_cpus = min((node.cpus for node in nodes), default=0)
    least_mb = min((node.memory_mb for node in nodes), default=0)
    share = NodeLeft(
        cpus=wished.cpus or max(1, int(portion * least_cpus)),
        memory_mb=wished.memory_mb or int(portion * least_mb),
        gpus=wished.gpus,
    )
    if not any(names(node, share) for node in nodes):
        raise UsageError(
            "BFT-1288",
            f"No node has {share.gpus} GPUs, {share.cpus} CPUs and {share.memory_mb} MB.",
            "Ask for less with --gpus-per-pilot, --cpus-per-pilot or --mem-per-pilot.",
        )
    return share


def split_nodes(
    nodes: Iterable[Node], share: NodeLeft, occupied: Iterable[str]
) -> tuple[Node, ...]:
    """Return the slots of all nodes; ``occupied``: those of our running pilots."""
    taken = set(occupied)
    return tuple(slot for node in nodes for slot in _slots(node, share, taken))


def _slots(node: Node, share: NodeLeft, taken: set[str]) -> Iterable[Node]:
    slots = names(node, share)
    n_free = len(slots)
    if node.state in (NodeState.ALLOCATED, NodeState.COMPLETING):
        n_free = 0 if node.left is None else fitting(node.left, share)
    for name in slots:
        state = node.state
        if name in taken:
            state = NodeState.ALLOCATED if state in _IN_USE else state
        elif state in _IN_USE:
            is_free, n_free = n_free > 0, n_free - 1
            free = NodeState.PLANNED if state is NodeState.PLANNED else NodeState.IDLE
            state = free if is_free else NodeState.ALLOCATED
        yield replace(
            node,
            name=name,
            state=state,
            cpus=share.cpus or 1,
            memory_mb=share.memory_mb,
            gpus=share.gpus,
            left=None,
        )


def split_jobs(
    jobs: Iterable[Job], slots_of: Mapping[str, Sequence[str]], pilots: Mapping[str, str]
) -> tuple[Job, ...]:
    """Name slots in jobs: a pilot has one; a job planned on a node is planned on all of its slots.

    Args:
        jobs: of the snapshot.
        slots_of: slots by node.
        pilots: slot by job id of our pilots.
    """
    found = []
    for job in jobs:
        if (slot := pilots.get(job.job_id)) is not None:
            nodes, required = (slot,) if job.nodes else (), (slot,) if job.required_nodes else ()
            found.append(replace(job, nodes=nodes, required_nodes=required, planned_nodes=()))
        elif job.planned_nodes:
            found.append(replace(job, planned_nodes=_all_slots(job.planned_nodes, slots_of)))
        else:
            found.append(job)
    return tuple(found)


def split_reservations(
    reservations: Iterable[Reservation], slots_of: Mapping[str, Sequence[str]]
) -> tuple[Reservation, ...]:
    """Name all slots of the reserved nodes."""
    return tuple(replace(r, nodes=_all_slots(r.nodes, slots_of)) for r in reservations)


def _all_slots(nodes: Iterable[str], slots_of: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    return tuple(slot for node in nodes for slot in slots_of.get(node, ()))
