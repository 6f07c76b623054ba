"""GPUs of a node that lends them one by one: whose they are, by type. Pure.

A snapshot shows such a node as one, with the GPUs of it that are free. Which of the others pilots
of ours have is known from our own pilots, so what remains is in use by ordinary jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from bftrainer.model.cluster import FREE, LentGpus, Node, NodeState
from bftrainer.model.parts import NodePart, type_name

_MOST_CACHED: Final = 1 << 14  # texts


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCount:
    """The GPUs of one type of a node that lends them one by one: each counts once below."""

    gpu_type: str  # as a request has it: "gpu:a100", or "gpu" where it has no name
    gpus: int  # in all
    held: int  # pilots have them, or are requested for them
    free: int  # a pilot could have them
    in_use: int  # ordinary jobs have them
    blocked: int  # no job has them, and too few CPUs or too little memory is left beside them


class HeldPart(NamedTuple):
    """The part of a node that a pilot of ours has or is requested for."""

    part: NodePart
    is_started: bool  # its job had begun when the node was looked at


def gpu_counts(node: Node, held_parts: Iterable[HeldPart]) -> tuple[GpuCount, ...]:
    """Count the GPUs of a node by type.

    Args:
        node: as the snapshot shows it.
        held_parts: those of it that pilots of ours have, or are requested for.
    """
    held_gpus: dict[str, int] = {}
    started_gpus: dict[str, int] = {}
    for part, is_started in held_parts:
        held_gpus[part.gpu_type] = held_gpus.get(part.gpu_type, 0) + part.gpus
        if is_started:
            started_gpus[part.gpu_type] = started_gpus.get(part.gpu_type, 0) + part.gpus
    n_blocked = _blocked_gpus(node)
    counts: list[GpuCount] = []
    for lent in node.lends or _lent_once(node, held_gpus):
        gpu_type = type_name(lent)
        n_held = min(lent.n_gpus, held_gpus.get(gpu_type, 0))
        n_started = min(n_held, started_gpus.get(gpu_type, 0))
        # The others of ours are among those that the snapshot shows as free.
        n_free = max(0, lent.n_free - (n_held - n_started))
        n_others = max(0, lent.n_gpus - n_held - n_free)
        blocked = min(n_others, n_blocked)
        n_blocked -= blocked
        counts.append(
            GpuCount(
                gpu_type=gpu_type,
                gpus=lent.n_gpus,
                held=n_held,
                free=min(n_free, lent.n_gpus - n_held),
                in_use=n_others - blocked,
                blocked=blocked,
            )
        )
    return tuple(counts)


def _blocked_gpus(node: Node) -> int:
    """Return how many GPUs no job has, though none of them could start a pilot."""
    n_lent = n_lent_free = 0
    for lent in node.lends:
        n_lent += lent.n_gpus
        n_lent_free += lent.n_free
    n_unused = 0
    if node.left is not None:
        n_unused = node.left.gpus
    elif node.state in FREE:
        n_unused = n_lent
    return max(0, n_unused - n_lent_free)


def _lent_once(node: Node, held_gpus: Mapping[str, int]) -> list[LentGpus]:
    """Return the types that pilots of ours have on a node that lends none any more."""
    lent: list[LentGpus] = []
    for gpu_type, count in held_gpus.items():
        name, n_gpus = gpu_type.partition(":")[2], count
        if len(held_gpus) == 1:
            n_gpus = max(node.gpus, count)
        lent.append(LentGpus(gpu_type=name, n_gpus=n_gpus, n_free=0, cpus=0, memory_mb=0))
    return lent


def part_number(name: str) -> int:
    """Return the number in the name of a part: 1 of ``n1/1``; -1: it has none."""
    number = name.rpartition("/")[2]
    if number.isdecimal():
        return int(number)
    return -1


def is_up(node: Node) -> bool:
    """Return whether jobs may run on the node, or do."""
    return node.state in (*FREE, NodeState.ALLOCATED, NodeState.COMPLETING)


class GpuShare(NamedTuple):
    """GPUs of a node that are used alike."""

    use: str  # a ``NodeUse``
    trainer_id: str  # "": none
    gpus: int


def shares_text(shares: Mapping[tuple[str, str], int]) -> str:
    """Return shares as one text: ``training:t1:2,idle::1``.

    Args:
        shares: use and trainer -> number of GPUs, in the order in which they are drawn.
    """
    return ",".join(
        [f"{use}:{trainer_id}:{gpus}" for (use, trainer_id), gpus in shares.items() if gpus]
    )


@lru_cache(maxsize=_MOST_CACHED)  # of many nodes the same, again and again
def shares_of(text: str) -> tuple[GpuShare, ...]:
    """Return the shares in a text of ``shares_text``.

    Raises:
        ValueError: it is no such text.
    """
    shares: list[GpuShare] = []
    for share_text in filter(None, text.split(",")):
        use, trainer_id, gpus = share_text.split(":")
        if not gpus.isdecimal():
            raise ValueError(f"{share_text!r} has no number of GPUs")
        shares.append(GpuShare(use=use, trainer_id=trainer_id, gpus=int(gpus)))
    return tuple(shares)
