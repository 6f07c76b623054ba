"""Tells which GPUs of a described site's nodes are lent one by one, by the daemon's rules. Pure.

What slurm.conf, or ``scontrol``, says of sharing is written as ``scontrol -o`` prints it, and
``lending`` reads it: so the simulated site lends the parts that the real one would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from bftrainer.model.cluster import Node, NodeState
from bftrainer.model.hostlist import ParseError
from slurm_plugins.fields import NOTHING, exclusive_of, whole
from slurm_plugins.gres import TypedGpus
from slurm_plugins.lending import (
    ClusterLimits,
    NodeLimits,
    PartitionLimits,
    SharingLimits,
    cluster_limits,
    partition_limits,
    with_parts,
)
from slurm_plugins.parse import UnusedPart

Record = Mapping[str, str]  # a line's settings; names in small letters

NAME = "PartitionName"
_OF_PARTITION = (
    *("ExclusiveUser", "Exclusive", "ExclusiveTopo", "MaxCPUsPerNode", "MaxCPUsPerSocket"),
    *("MaxMemPerNode", "MaxMemPerCPU", "SelectTypeParameters"),
)
_OF_CLUSTER = ("SelectType", "SelectTypeParameters", "MaxMemPerNode", "MaxMemPerCPU")
_PER_GPU = ("DefCpuPerGPU", "DefMemPerGPU")
# What a partition says that is silent of it; SelectType is that of 23.02 and later.
_UNSAID = {"MaxCPUsPerNode": "UNLIMITED", "OverSubscribe": "NO"}
_SELECT = {"SelectType": "select/cons_tres"}


def cluster_limits_of(settings: Record) -> ClusterLimits | None:
    """Return what the settings of the cluster say of sharing; None: they cannot be read."""
    words = {**_SELECT, **_words(settings, _OF_CLUSTER)}
    with suppress(ParseError):
        return cluster_limits("".join(f"{name} = {value}\n" for name, value in words.items()))
    return None


def partition_limits_of(partitions: Iterable[Record]) -> dict[str, PartitionLimits]:
    """Return what partitions say of sharing; one that cannot be read is left out."""
    lines = []
    for record in partitions:
        sharing = record.get("oversubscribe", record.get("shared", "NO")).upper()
        words = {**_UNSAID, **_words(record, _OF_PARTITION), "OverSubscribe": sharing}
        words["Exclusive"] = exclusive_of(record)
        line = " ".join(f"{name}={value}" for name, value in words.items())
        lines.append(f"{NAME}={record[NAME.lower()]} {line}\n")
    return partition_limits("".join(lines))


def _words(record: Record, names: Iterable[str]) -> dict[str, str]:
    """Return the named settings of a record, the defaults per GPU as ``scontrol`` prints them."""
    words = {name: record[name.lower()] for name in names if name.lower() in record}
    defaults = [f"{name}={record[name.lower()]}" for name in _PER_GPU if name.lower() in record]
    words["JobDefaults"] = record.get("jobdefaults", ",".join(defaults))
    return words


def node_limits_of(record: Record, usable_cpus: int, cpus: int) -> NodeLimits | None:
    """Return what of a node jobs can have, memory and CPUs of the system taken off already.

    Args:
        record: its line.
        usable_cpus: that jobs can have.
        cpus: of all its cores.

    Returns:
        None: a number cannot be read.
    """
    with suppress(ParseError):
        return _node_limits(record, usable_cpus, cpus)
    return None


def _node_limits(record: Record, usable_cpus: int, cpus: int) -> NodeLimits:
    sockets = max(1, _number(record, "sockets", _number(record, "socketsperboard", 1)))
    cores = sockets * max(1, _number(record, "corespersocket", 1))
    # CPUs= may count cores although each has two threads.
    per_core = max(1, min(_number(record, "threadspercore", 1), cpus // cores))
    restricted, _, _ = record.get("restrictedcorespergpu", "0").partition("(")
    return NodeLimits(
        cpus=usable_cpus,
        usable_cpus=usable_cpus,
        cpus_per_core=per_core,
        sockets=sockets,
        memory_mb=0,
        restricted_cpus_per_gpu=per_core * whole(restricted or "0"),
    )


def _number(record: Record, name: str, otherwise: int) -> int:
    text = record.get(name, "")
    if text in NOTHING:
        return otherwise
    return whole(text)


def as_lending(
    node: Node,
    gpus: Iterable[tuple[str, int]],
    pilot_partition: str,
    limits: SharingLimits,
    *,
    is_described: bool,
) -> Node:
    """Return an idle node with its GPUs as pilots may have them.

    Args:
        node: with the partitions that it is in, those of pilots included.
        gpus: its GPUs by type and number.
        pilot_partition: of the pilots.
        limits: all that the site says of sharing.
        is_described: the site has the partition of pilots; if not, nothing limits its jobs.
    """
    if not node.gpus:
        return node
    partitions = limits.partitions
    if not is_described:
        partitions = {pilot_partition: PartitionLimits(), **partitions}
    room = UnusedPart(
        gpus=tuple(TypedGpus(gpu_type=kind, count=n, free=n) for kind, n in gpus),
        cpus=node.cpus,
        memory_mb=node.memory_mb,
    )
    idle = replace(node, state=NodeState.IDLE)
    return with_parts(idle, room, pilot_partition, replace(limits, partitions=partitions))
