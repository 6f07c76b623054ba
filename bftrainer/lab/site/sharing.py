"""The sizes of a simulated site's nodes, its partitions, and what a job takes of a node. Pure data.

A site without ``NodeCapacity`` gives whole nodes only. Source of the rules: slurm.conf(5), 22.05,
"SelectType=select/cons_tres", "OverSubscribe", "MaxCPUsPerNode"; gres.conf(5), "Type".
"""

from __future__ import annotations

from dataclasses import dataclass

NodeSet = int  # bit k: node k
ANY_TYPE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a job takes of each of its nodes."""

    cpus: int = 1
    memory_mb: int = 0  # 0: none is counted
    gpus: int = 0
    gpu_type: str = ANY_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """What a node has for jobs; CPUs and memory kept for the system are not in it."""

    cpus: int
    memory_mb: int = 0  # 0: memory is not counted (CR_CPU, CR_Core)
    gpus: tuple[tuple[str, int], ...] = ()  # type and number
    weight: int = 1  # nodes of a lower one are taken first (Weight)

    @property
    def n_gpus(self) -> int:
        """Return the GPUs of all types."""
        return sum(number for _, number in self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePartition:
    """A partition of ordinary jobs."""

    name: str
    nodes: NodeSet
    tier: int = 1  # jobs of a higher one are tested first (PriorityTier)
    is_whole: bool = False  # OverSubscribe=EXCLUSIVE: a job has its nodes alone, whatever it asks
    max_cpus_per_node: int = 0  # of all its jobs together; 0: no limit
