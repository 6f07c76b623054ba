"""Parts of nodes: what is lent as one. Data.

A part is GPUs of one type of a node, with their cores and memory; a whole node is the largest part.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from bftrainer.model.cluster import PART_MARK, LentGpus, Node, NodeLeft, Snapshot, node_of
from bftrainer.model.lookups import by_name

ANY_TYPE = "gpu"  # of GPUs whose type has no name
NOT_SHARED = "Ordinary jobs do not share it, so it is lent as a whole (lend: auto)."


class Lend(enum.StrEnum):
    """What is lent: the policy's ``lend``."""

    AUTO = "auto"  # GPUs of nodes that jobs share, other nodes as a whole
    NODES = "nodes"  # whole nodes
    GPUS = "gpus"  # GPUs, also where ordinary jobs have whole nodes; nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePart:
    """What is lent as one: GPUs of one type of a node, with cores and memory; at most the node.

    Its name is that of its node, or for less than the node ``n1/0``, ``n1/1``: a number that no
    other part of the node has while a pilot of ours has this one. The number says nothing of which
    GPUs they are.
    """

    name: str  # its key in the census, in pools and assignments; of a whole node the node's name
    node: str  # of which it is a part
    # Of a whole node as the adapter names it: GPUs by type and count, or "default". Of less than a
    # node the type alone, as sbatch's --gres has it: "gpu:a100", or "gpu" where it has no name.
    gpu_type: str
    gpus: int
    cores: int
    memory_mb: int  # 0: not known

    def has_room_for(self, share: NodeLeft) -> bool:
        """Return whether a job that needs this much of a node could start on the part."""
        has_memory = not self.memory_mb or share.memory_mb <= self.memory_mb
        return share.cpus <= self.cores and share.gpus <= self.gpus and has_memory


def gres_of(part: NodePart) -> str:
    """Return the GPUs of less than a node as sbatch's --gres has them: ``gpu:a100:2``."""
    return f"{part.gpu_type}:{part.gpus}"


def type_name(lent: LentGpus) -> str:
    """Return the type of a part of these GPUs (``NodePart.gpu_type``)."""
    if lent.gpu_type:
        return f"{ANY_TYPE}:{lent.gpu_type}"
    return ANY_TYPE


def single_gpu(node: Node, lent: LentGpus) -> NodePart:
    """Return one of these GPUs of a node of which no part is in use by us."""
    return NodePart(
        name=f"{node.name}{PART_MARK}0",
        node=node.name,
        gpu_type=type_name(lent),
        gpus=1,
        cores=lent.cpus,
        memory_mb=lent.memory_mb,
    )


def as_lent(snapshot: Snapshot, lend: Lend, before: Snapshot | None = None) -> Snapshot:
    """Return the snapshot with GPUs lent one by one only where the policy lends them so.

    Args:
        snapshot: as the batch system shows it.
        lend: the policy's wish.
        before: the result for the look before, of which unchanged nodes are used again.
    """
    nodes = snapshot.nodes
    if nodes is None or not any(_is_changed(node, lend) for node in nodes):
        return snapshot
    node_before: dict[str, Node] = {}
    if before is not None:
        node_before = by_name(before.nodes or ())
    lent: list[Node] = []
    for node in nodes:
        if not _is_changed(node, lend):
            lent.append(node)
            continue
        as_whole = _whole_only(node, lend)
        # The same object where nothing has changed: what is worked out by it is kept.
        if node_before.get(node.name) == as_whole:
            as_whole = node_before[node.name]
        lent.append(as_whole)
    return replace(snapshot, nodes=tuple(lent))


def _is_changed(node: Node, lend: Lend) -> bool:
    """Return whether less is to be shown of the node than the batch system allows."""
    if lend is Lend.NODES:  # nothing is left of it, as before there were parts
        return bool(node.lends) or node.is_shared or node.why_whole != ""
    return lend is Lend.AUTO and bool(node.lends) and not node.is_shared


@lru_cache(maxsize=16_384)  # most nodes of a look are as in the one before
def _whole_only(node: Node, lend: Lend) -> Node:
    if lend is Lend.AUTO:
        return replace(node, lends=(), why_whole=NOT_SHARED)
    return replace(node, lends=(), is_shared=False, why_whole="")


def host_of(part: Node) -> Node:
    """Return the host of a part as a node, with all GPUs that it has."""
    types = [f"{type_name(lent)}:{lent.n_gpus}" for lent in part.lends]
    return replace(
        part, name=node_of(part.name), gpus=n_gpus_of_host(part), node_type=",".join(types)
    )


def n_gpus_of_host(part: Node) -> int:
    """Return how many GPUs the host of a part has."""
    lends = part.lends
    if len(lends) == 1:  # as a rule, and asked for every part
        return lends[0].n_gpus
    return sum([lent.n_gpus for lent in lends])


def smallest_lending_host(nodes: Iterable[Node]) -> int:
    """Return the GPUs of the smallest host whose GPUs are lent one by one; 0: there is none."""
    return min([n_gpus_of_host(node) for node in nodes if node.lends], default=0)


def most_units(max_nodes: int, gpus_per_unit: int, host_gpus: int) -> int:
    """Return how many units a limit in nodes allows: K of a node's G GPUs count K/G of it.

    Args:
        max_nodes: the limit.
        gpus_per_unit: K; 0: a unit is a whole node.
        host_gpus: G; 0: no GPUs are lent one by one.
    """
    if not host_gpus or not gpus_per_unit:
        return max_nodes
    return max_nodes * host_gpus // min(gpus_per_unit, host_gpus)


def share_of_host(part: Node) -> float:
    """Return for how much of a node a part counts: its GPUs of those of its host."""
    if PART_MARK not in part.name or not part.lends:
        return 1.0
    return part.gpus / n_gpus_of_host(part)
