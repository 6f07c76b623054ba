"""The request of a submitted job in the words in which squeue will show it. Pure.

Called by ``lines`` with the fields of a line; ``slurm_plugins.job_requests`` reads the words. So a
job that was announced asks for the same as the job that the next poll shows. What slurmctld adds to
a request between the two is added here. Sources: ``_validate_job_desc``,
``_copy_job_desc_to_job_record`` and ``_pack_default_job_details`` of job_mgr.c, 22.05 to 26.05;
``slurm_opt_create_job_desc`` of slurm_opt.c, by which sbatch and srun have done the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from bftrainer.model.cluster import Job
from bftrainer.model.hostlist import ParseError
from slurm_plugins.job_requests import FIELDS
from slurm_plugins.lending import DefaultMemory, PartitionLimits, SharingLimits
from slurm_plugins.parse import ControllerConfig

_COUNT = re.compile(r"[0-9]{1,10}")  # 32 bits
_AMOUNT = re.compile(r"[0-9]{1,19}")  # 64 bits
# JOB_SHARED_* of slurm.h in squeue's words (job_share_string); "": the user says nothing.
_SHARED = {"": "OK", "0": "NO", "1": "YES", "2": "USER", "3": "MCS", "4": "TOPO"}
_UNTOLD = "?"
_NO_REST_SINCE = "23.11"  # squeue's estimate leaves out the node of the remaining tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What is known of the cluster when a line arrives."""

    cpus_per_node: int = 0  # of the largest node; 0: unknown
    config: ControllerConfig | None = None
    limits: SharingLimits = field(default_factory=SharingLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedFields:
    """The fields of a line that say how much a job asks for, as text; "": nothing is submitted."""

    nodes: str
    tasks: str
    cpus_per_task: str
    cpus: str
    max_nodes: str
    tasks_per_node: str
    min_cpus_per_node: str
    memory_mb: str  # on each node
    memory_per_cpu_mb: str
    shared: str
    gpus_in_all: str
    gpus_per_socket: str
    gpus_per_task: str
    cpus_per_gpu: str
    memory_per_gpu: str
    excluded: str
    reservation: str
    prefer: str
    least_minutes: str
    contiguous: str
    switches: str
    reboot: str


FIELD_NAMES = tuple([field.name for field in fields(SubmittedFields)])  # as ``scripts`` has them


def count(text: str) -> int:
    """Parse a number of 32 bits; raises ``ParseError``."""
    if _COUNT.fullmatch(text) is None:
        raise ParseError(f"not a count: {text[:40]!r}")
    return int(text)


def nodes_shown(submitted: SubmittedFields, n_required: int, cluster: ClusterFacts) -> int:
    """Return for how many nodes squeue shows a pending job: an estimate where none are asked for.

    Raises:
        ParseError: a number is none.
    """
    n_nodes, n_tasks = _least_nodes(submitted, n_required), _count_or(submitted.tasks, 0)
    if tasks_per_node := _count_or(submitted.tasks_per_node, 0):
        return max(n_nodes, n_tasks // tasks_per_node)
    per_node, per_task = cluster.cpus_per_node, _cpus_per_task(submitted)
    if not per_node:
        return n_nodes
    if per_task == 1:
        return max(n_nodes, math.ceil(n_tasks / per_node))
    n_full, n_rest = divmod(n_tasks, max(1, per_node // per_task))
    n_nodes = max(n_nodes, n_full)
    if n_rest and cluster.config is not None and cluster.config.release < _NO_REST_SINCE:
        n_nodes += 1  # even if as many were asked for as are needed
    return n_nodes


def row_of(submitted: SubmittedFields, job: Job, limits: SharingLimits) -> dict[str, str]:
    """Return what ``squeue -O`` will print in ``job_requests.FIELDS``.

    Args:
        submitted: in the line.
        job: with its partitions, the nodes that it names, and the number that is shown.
        limits: of the cluster, as far as they are known.

    Raises:
        ParseError: a number is none.
    """
    n_required = len(job.required_nodes)
    n_nodes = _least_nodes(submitted, n_required)
    cpus = max(_count_or(submitted.cpus, n_nodes), n_required)
    memory = _memory(submitted, job.partitions, limits)
    memory_mb, total_mb = memory.memory_mb, memory.memory_mb * n_nodes
    if memory.memory_per_cpu_mb:
        memory_mb, total_mb = memory.memory_per_cpu_mb, memory.memory_per_cpu_mb * cpus
    row = {
        "JobArrayID": "0",
        "NumCPUs": str(cpus),
        "MinCpus": str(_cpus_per_node(submitted)),
        "NumTasks": str(_count_or(submitted.tasks, 0) or n_nodes),
        "MinMemory": f"{memory_mb}M",
        "MaxNodes": str(_count_or(submitted.max_nodes, 0) or job.n_nodes),
        "MinTime": f"{_count_or(submitted.least_minutes, 0)}:00",
        "OverSubscribe": _sharing(submitted.shared, job.partitions, limits),
        "Reservation": submitted.reservation,
        "Contiguous": submitted.contiguous,
        "ReqSwitch": submitted.switches,
        "Reboot": submitted.reboot,
        "Prefer": submitted.prefer,
        "tres-per-job": submitted.gpus_in_all,
        "tres-per-socket": submitted.gpus_per_socket,
        "tres-per-task": submitted.gpus_per_task,
        "tres-alloc": f"cpu={cpus},mem={total_mb}M,node={n_nodes}",
        "cpus-per-tres": submitted.cpus_per_gpu,
        "mem-per-tres": submitted.memory_per_gpu,
    }
    return {name: row[name] for name in FIELDS}


def _least_nodes(submitted: SubmittedFields, n_required: int) -> int:
    return max(1, _count_or(submitted.nodes, 1), n_required)


def _cpus_per_task(submitted: SubmittedFields) -> int:
    return max(1, _count_or(submitted.cpus_per_task, 1))


def _cpus_per_node(submitted: SubmittedFields) -> int:
    """Return the fewest CPUs on each node."""
    per_task = _cpus_per_task(submitted)
    cpus = max(_count_or(submitted.min_cpus_per_node, 1), per_task)
    if _count_or(submitted.tasks, 0) > 1:
        cpus = max(cpus, per_task * _count_or(submitted.tasks_per_node, 0))
    return cpus


def _memory(
    submitted: SubmittedFields, partitions: Sequence[str], limits: SharingLimits
) -> DefaultMemory:
    if submitted.memory_per_cpu_mb:
        return DefaultMemory(memory_per_cpu_mb=_amount(submitted.memory_per_cpu_mb))
    if submitted.memory_mb:
        return DefaultMemory(memory_mb=_amount(submitted.memory_mb))
    return limits.default_memory_in(partitions)


def _sharing(shared: str, partitions: Sequence[str], limits: SharingLimits) -> str:
    """Return the word for who may be on the job's nodes; its partition's where it says nothing."""
    word = _SHARED.get(shared, _UNTOLD)
    partition = limits.partition_of(partitions)
    if word != "OK" or partition is None:
        return word
    return _sharing_in(partition)


def _sharing_in(partition: PartitionLimits) -> str:
    if partition.is_user_exclusive:
        return "USER"
    kind, _, n_jobs = partition.over_subscribe.partition(":")
    if kind == "FORCE" and n_jobs != "1":
        return "YES"
    return "NO" if partition.is_exclusive else "OK"


def _count_or(text: str, otherwise: int) -> int:
    if not text:
        return otherwise
    return count(text)


def _amount(text: str) -> int:
    if _AMOUNT.fullmatch(text) is None:
        raise ParseError(f"not an amount: {text[:40]!r}")
    return int(text)
