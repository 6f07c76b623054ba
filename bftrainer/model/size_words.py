"""Sizes of trainers in words, and in nodes: nodes, GPUs, or units of GPUs of one node. Pure.

Where limits and sums are in nodes, K of a node's G GPUs count K/G of a node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from bftrainer.model.cluster import Node
from bftrainer.model.columns import counted
from bftrainer.model.trainer_spec import TrainerSpec


def size_words(size: int, gpus_per_unit: int) -> str:
    """Return a size: 3 nodes, 3 GPUs, or 3 x 4 GPUs (``gpus_per_unit``: 0, 1, 4)."""
    if gpus_per_unit > 1:
        return f"{size} {units(gpus_per_unit)}"
    return counted(size, "GPU" if gpus_per_unit else "node")


def units(gpus_per_unit: int) -> str:
    """Return what several of a size are: nodes, GPUs, x 4 GPUs."""
    if gpus_per_unit > 1:
        return f"x {gpus_per_unit} GPUs"
    return "GPUs" if gpus_per_unit else "nodes"


def short_size(size: int, gpus_per_unit: int) -> str:
    """Return a size for a narrow column, where nodes are bare numbers: 3, 3 GPUs, 3 x 4 GPUs."""
    if not gpus_per_unit:
        return str(size)
    return size_words(size, gpus_per_unit)


def limit_words(spec: TrainerSpec) -> str:
    """Return the sizes that a trainer may have: 1 to 8 nodes, 1 GPU, 1 to 4 x 4 GPUs."""
    if spec.n_min == spec.n_max:
        return size_words(spec.n_min, spec.gpus_per_unit)
    return f"{spec.nodes.replace(':', ' to ')} {units(spec.gpus_per_unit)}"


def short_limits(spec: TrainerSpec) -> str:
    """Return them for a narrow column, where nodes are bare numbers: 1:8, 1:16 GPUs."""
    if not spec.gpus_per_unit:
        return spec.nodes
    return f"{spec.nodes} {units(spec.gpus_per_unit)}"


def least_nodes(size: int, gpus_per_unit: int, nodes: Iterable[Node]) -> int:
    """Return the fewest nodes that a size can be had on, with the nodes of the most GPUs."""
    if not gpus_per_unit:
        return size
    most_gpus = max([node.gpus for node in nodes], default=0)
    if not most_gpus:
        return 1
    return math.ceil(size * gpus_per_unit / most_gpus)
