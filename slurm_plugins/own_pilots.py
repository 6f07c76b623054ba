"""Sizes of the pilots that a user's own daemon would ask for: whole nodes, or GPUs of them. Pure.

Called by ``own_site``, which tries out each size and turns limits of jobs and of resources into
nodes: a pilot with one of a node's G GPUs counts as 1/G of a node, as in the policy's limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bftrainer.model.cluster import Node
from bftrainer.model.generic_resources import by_kind, items_of
from bftrainer.model.parts import Lend, NodePart, single_gpu

Amounts = Mapping[str, int]  # of one pilot, by trackable resource; memory in MB


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotSize:
    """What one kind of pilot takes."""

    amounts: Amounts  # at most
    part: NodePart | None = None  # to try out; None: a whole node
    n_on_node: int = 1  # so many of them fill a node

    def nodes_of(self, n_pilots: int) -> int:
        """Return how many nodes so many pilots fill, and one if they fill none."""
        if n_pilots < 1:
            return 0
        return max(1, n_pilots // self.n_on_node)

    def nodes_within(self, resource: str, count: int) -> int:
        """Return how many nodes a limit on a resource leaves."""
        if resource == "node":  # of pilots on one node Slurm counts it once
            return count
        return self.nodes_of(count // self.amounts[resource])


def pilot_sizes(nodes: Sequence[Node], lend: Lend) -> tuple[PilotSize, ...]:
    """Return the sizes, whole nodes first; (): no node is lent.

    Args:
        nodes: of the pilots' partition, as the policy would lend them (``as_lent``).
        lend: the policy's wish.
    """
    lending = [node for node in nodes if node.lends]
    as_whole = [node for node in nodes if not node.lends]
    sizes: list[PilotSize] = []
    if lend is not Lend.GPUS and (as_whole or not lending):
        sizes.append(PilotSize(amounts=amounts_of(as_whole)))
    if lending:
        sizes.append(_single(max(lending, key=lambda node: node.gpus)))
    return tuple(sizes)


def amounts_of(nodes: Iterable[Node]) -> Amounts:
    """Return what a pilot of a whole node takes: as many CPUs and GPUs as any node has.

    And the memory of the smallest node: a user whose limit is below that of the largest may still
    have the small ones.
    """
    most = {"node": 1, "cpu": 1, "gres/gpu": 0}
    memories_mb: list[int] = []
    for node in nodes:
        amounts = {"cpu": node.cpus, "gres/gpu": node.gpus}
        if node.gpus:
            for gpu_type, n_gpus in by_kind(items_of(node.node_type)).items():
                if gpu_type:
                    amounts[f"gres/gpu:{gpu_type}"] = n_gpus
        if node.memory_mb:
            memories_mb.append(node.memory_mb)
        for resource, amount in amounts.items():
            most[resource] = max(amount, most.get(resource, 0))
    return {**most, "mem": min(memories_mb, default=0)}


def _single(node: Node) -> PilotSize:
    """Return a single GPU of a node."""
    lent = node.lends[0]
    amounts = {"node": 1, "cpu": lent.cpus, "mem": lent.memory_mb, "gres/gpu": 1}
    if lent.gpu_type:
        amounts[f"gres/gpu:{lent.gpu_type}"] = 1
    return PilotSize(amounts=amounts, part=single_gpu(node, lent), n_on_node=node.gpus)


def jobs_in_nodes(n_jobs: int, sizes: Iterable[PilotSize]) -> tuple[int, str]:
    """Return how many nodes a limit on jobs leaves, and what a pilot is, in words.

    Where nodes are lent as a whole, too, all pilots may have such.
    """
    n_nodes, words = 0, ""
    for size in sizes:
        if size.nodes_of(n_jobs) > n_nodes:
            n_nodes, words = size.nodes_of(n_jobs), share_words(size)
    return n_nodes, words


def resource_in_nodes(resource: str, count: int, sizes: Iterable[PilotSize]) -> tuple[int, str]:
    """Return how many nodes a limit on a resource leaves, and what a pilot takes, in words.

    Of several sizes that one counts which takes most of it and may still start.
    """
    of_sizes: list[tuple[int, str]] = []
    for size in sizes:
        if amount := size.amounts.get(resource, 0):
            takes = share_words(size)
            if amount > 1:
                takes = f", and a pilot takes {amount}"
                if resource == "mem":
                    takes += "M"
            of_sizes.append((size.nodes_within(resource, count), takes))
    may_start = [(n_nodes, takes) for n_nodes, takes in of_sizes if n_nodes]
    return min(may_start or of_sizes)


def takes_any(resource: str, sizes: Iterable[PilotSize]) -> bool:
    """Return whether some pilot takes any of a resource."""
    return any(size.amounts.get(resource, 0) for size in sizes)


def fits_any(resource: str, count: int, sizes: Iterable[PilotSize]) -> bool:
    """Return whether some pilot takes no more of a resource than one job may."""
    return any(size.amounts.get(resource, 0) <= count for size in sizes)


def share_words(size: PilotSize) -> str:
    """Say which share of a node a pilot is; "": all of it."""
    if size.part is None or size.n_on_node == 1:
        return ""
    return f", and a pilot has one of a node's {size.n_on_node} GPUs"
