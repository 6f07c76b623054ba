"""Builders for hosts whose GPUs are lent one by one, and for what is on them."""

from __future__ import annotations

from dataclasses import replace

from bftrainer.model.cluster import Job, JobState, LentGpus, Node, NodeLeft, NodeState
from bftrainer.model.decision import PilotView
from bftrainer.model.parts import NodePart
from bftrainer.model.trainer import TrainerRecord
from tests.support.snapshots import T0, pending, record, running

CPUS_PER_GPU = 4
MEMORY_PER_GPU_MB = 1000


def gpu_host(
    name: str,
    *,
    n_gpus: int = 4,
    ordinary: int = 0,
    ours: int = 0,
    gpu_type: str = "a100",
    state: NodeState | None = None,
) -> Node:
    """A host of whose GPUs ordinary jobs and running pilots of ours have so many."""
    n_free = n_gpus - ordinary - ours
    left: NodeLeft | None = None
    if n_free < n_gpus:
        state = state or NodeState.ALLOCATED
        if n_free:
            left = share_of(n_free)
    return Node(
        name=name,
        state=state or NodeState.IDLE,
        node_type=f"gpu:{gpu_type}:{n_gpus}",
        gpus=n_gpus,
        cpus=n_gpus * CPUS_PER_GPU,
        memory_mb=n_gpus * MEMORY_PER_GPU_MB,
        partitions=("batch", "bf"),
        left=left,
        lends=(
            LentGpus(
                gpu_type=gpu_type,
                n_gpus=n_gpus,
                n_free=n_free,
                cpus=CPUS_PER_GPU,
                memory_mb=MEMORY_PER_GPU_MB,
            ),
        ),
        is_shared=True,
    )


def share_of(n_gpus: int) -> NodeLeft:
    """So many GPUs with their CPUs and memory."""
    return NodeLeft(cpus=n_gpus * CPUS_PER_GPU, memory_mb=n_gpus * MEMORY_PER_GPU_MB, gpus=n_gpus)


def part(name: str, *, gpus: int = 1, gpu_type: str = "a100") -> NodePart:
    """The part of that name, ``n1/0``."""
    share = share_of(gpus)
    return NodePart(
        name=name,
        node=name.partition("/")[0],
        gpu_type=f"gpu:{gpu_type}",
        gpus=gpus,
        cores=share.cpus,
        memory_mb=share.memory_mb,
    )


def part_pilot(name: str, *, is_held: bool = True, is_leaving: bool = False) -> PilotView:
    """A pilot of ours with one GPU."""
    return PilotView(
        pilot_id=f"p-{name}",
        node=name,
        requested_s=T0,
        is_held=is_held,
        is_leaving=is_leaving,
        part=part(name),
    )


def pilot_job(name: str, state: JobState = JobState.RUNNING) -> Job:
    """The job of the pilot with that part."""
    host = name.partition("/")[0]
    nodes = () if state is JobState.PENDING else (host,)
    return Job(
        job_id=f"j-{name}",
        user="bftrainer",
        partitions=("bf",),
        state=state,
        n_nodes=1,
        time_limit_s=3600.0,
        start_s=T0,
        nodes=nodes,
        required_nodes=(host,),
        gpus_per_node=1,
        pilot_id=f"p-{name}",
    )


def gpu_job(
    job_id: str, gpus: int, *, n_nodes: int = 1, gpu_type: str = "", priority: float = 0.0
) -> Job:
    """A pending job that shares nodes; it asks for so many GPUs on each."""
    return replace(
        pending(job_id, n_nodes, priority=priority),
        gpus_per_node=gpus,
        cpus_per_node=max(1, gpus),
        memory_mb=100,
        gpu_type=gpu_type,
        can_share=True,
    )


def exclusive_job(job_id: str, n_nodes: int) -> Job:
    """A pending job that asks for whole nodes."""
    return replace(pending(job_id, n_nodes), gpus_per_node=4)


def ordinary(job_id: str, host: str, gpus: int) -> Job:
    """A running job with so many GPUs of a host."""
    return replace(running(job_id, host), gpus_per_node=gpus, can_share=True)


def gpu_trainer(
    trainer_id: str, *, per_unit: int = 1, n_min: int = 1, n_max: int = 8
) -> TrainerRecord:
    """A trainer whose sizes count units of so many GPUs of a node; 0: whole nodes."""
    plain = record(trainer_id, n_min=n_min, n_max=n_max)
    return replace(plain, spec=replace(plain.spec, gpus_per_unit=per_unit))
