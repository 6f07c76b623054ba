"""The GPUs of a test cluster, which are files: what gres.conf and slurm.conf say of them. Pure.

``config`` calls it with the generic resources of each node, written as slurm.conf has them:
``gpu:4``, ``gpu:a100:2,gpu:1g.10gb:7``, ``gpu:4,shard:16``. A type that is named like a MIG slice
is one: its record has two files, that of the GPU and its own. Source: gres.conf(5) and
slurm.conf(5), 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bftrainer.model.errors import UsageError

GpuCores = Literal["", "all", "own"]
"""Processors that GPUs are bound to: none, all of the node's, or each GPU its part of them."""

SHARD = "shard"
_RESOURCE = re.compile(r"(gpu|shard)(?::([A-Za-z0-9._-]*[A-Za-z._-][A-Za-z0-9._-]*))?:([0-9]{1,3})")
_MIG_SLICE = re.compile(r"[0-9]+g\.[0-9]+gb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """So many GPUs of a type, or so many shards of all GPUs, on a node."""

    name: str
    gpu_type: str  # "": none
    count: int

    @property
    def is_mig(self) -> bool:
        """Return whether these are slices of GPUs."""
        return _MIG_SLICE.fullmatch(self.gpu_type) is not None


def resources_of(gres: str) -> tuple[Resource, ...]:
    """Parse the generic resources of a node.

    Raises:
        UsageError: BFT-1243, they cannot be read.
    """
    if not gres:
        return ()
    resources = []
    for text in gres.split(","):
        parts = _RESOURCE.fullmatch(text)
        if parts is None:
            raise UsageError(
                "BFT-1243",
                f"The generic resource {text[:80]!r} of a node cannot be read.",
                "Write gpu:COUNT, gpu:TYPE:COUNT or shard:COUNT, joined by commas.",
            )
        name, gpu_type, count = parts.groups(default="")
        resources.append(Resource(name=name, gpu_type=gpu_type, count=int(count)))
    return tuple(resources)


def files_needed(gres: str) -> int:
    """Return how many files stand for the GPUs of a node; MIG slices share one more."""
    resources = [resource for resource in resources_of(gres) if resource.name != SHARD]
    has_mig = any(resource.is_mig for resource in resources)
    return sum(resource.count for resource in resources) + int(has_mig)


def lines(
    gres: str,
    files: Sequence[str],
    *,
    n_cpus: int,
    cores: GpuCores,
    flags: str = "",
    prefix: str = "",
) -> list[str]:
    """Return the lines of gres.conf for a node.

    Args:
        gres: its generic resources.
        files: at least as many as ``files_needed`` says.
        n_cpus: of the node.
        cores: what its GPUs are bound to.
        flags: of all GPUs.
        prefix: of every line: the node's name, where nodes differ.
    """
    resources = resources_of(gres)
    n_gpus = sum(resource.count for resource in resources if resource.name != SHARD)
    text = []
    number = 0
    for resource in resources:
        if resource.name == SHARD:
            text.append(f"{prefix}Name=shard Count={resource.count}")
            continue
        head = f"{prefix}Name=gpu"
        if resource.gpu_type:
            head += f" Type={resource.gpu_type}"
        if flags:
            head += f" Flags={flags}"
        for _ in range(resource.count):
            place = f"File={files[number]}"
            if resource.is_mig:  # the last file is the GPU's that all slices are of
                place = f"MultipleFiles={files[n_gpus]},{files[number]}"
            text.append(f"{head} {place}{_cores(cores, number, n_gpus, n_cpus)}")
            number += 1
    return text


def _cores(cores: GpuCores, number: int, n_gpus: int, n_cpus: int) -> str:
    if not cores:
        return ""
    first, last = 0, n_cpus - 1
    if cores == "own":
        first, last = number * n_cpus // n_gpus, (number + 1) * n_cpus // n_gpus - 1
    return f" Cores={first}-{max(first, last)}"
