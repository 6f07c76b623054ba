"""How the jobs of a test cluster share nodes: settings of its nodes and partitions. Pure.

``ClusterConfig`` has a ``Sharing``; ``config`` adds what the functions here return to the lines of
slurm.conf. Source: slurm.conf(5), 22.05; ``RestrictedCoresPerGPU``: release notes of 24.05.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

RESTRICTED_CORES_SINCE = "24.05"
OVER_SUBSCRIBE = re.compile(r"NO|EXCLUSIVE|(?:YES|FORCE)(?::[1-9][0-9]{0,2})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Settings that decide who may be beside whom; the defaults are Slurm's."""

    over_subscribe: str = "NO"  # of the ordinary partition, as ``OVER_SUBSCRIBE`` has it
    is_user_exclusive: bool = False  # a node of the ordinary partition has jobs of one user only
    pilot_cpus_per_node: int = 0  # most CPUs of all pilots of a node together; 0: no limit
    memory_per_gpu_mb: int = 0  # of a job of either partition that names none; 0: all of the node's
    system_cpus: str = ""  # CPUs kept for the system (CpuSpecList), e.g. 0,1
    restricted_cores_per_gpu: int = 0  # cores that only jobs with a GPU may have; 24.05 and later


def node_settings(sharing: Sharing) -> str:
    """Return what is added to the line of each node."""
    settings = ""
    if sharing.system_cpus:
        settings += f" CpuSpecList={sharing.system_cpus}"
    if sharing.restricted_cores_per_gpu:
        settings += f" RestrictedCoresPerGPU={sharing.restricted_cores_per_gpu}"
    return settings


def ordinary_settings(sharing: Sharing) -> str:
    """Return what is added to the line of the ordinary partition."""
    settings = f" OverSubscribe={sharing.over_subscribe}{_memory(sharing)}"
    if sharing.is_user_exclusive:
        settings += " ExclusiveUser=YES"
    return settings


def pilot_settings(sharing: Sharing) -> str:
    """Return what is added to the line of the pilots' partition."""
    settings = _memory(sharing)
    if sharing.pilot_cpus_per_node:
        settings += f" MaxCPUsPerNode={sharing.pilot_cpus_per_node}"
    return settings


def _memory(sharing: Sharing) -> str:
    if not sharing.memory_per_gpu_mb:
        return ""
    return f" DefMemPerGPU={sharing.memory_per_gpu_mb}"
