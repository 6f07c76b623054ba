"""Draws the jobs of a cluster that schedules GPUs, as ``WorkloadItem``s. Pure.

Most jobs take 1 to 4 GPUs of a node, with CPUs and memory that are not always in proportion; some
take whole nodes; there are arrays, and jobs that wait for an earlier one. Limits are 2 to 5 times
the run time, in whole minutes. About 42% of the submissions ask for one GPU, 30% for two, 4% for
three, 14% for four, and 7% for two whole nodes.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from slurm_plugins.testcluster.workload import WorkloadItem

WHOLE_NODES_SHARE = 0.07  # of submissions
LARGEST_WHOLE = 2  # nodes
GPU_COUNTS = ((1, 0.45), (2, 0.30), (3, 0.04), (4, 0.14))  # of a node; the shares are relative
ARRAY_SHARE = 0.12  # of submissions with one GPU
MOST_TASKS = 6
WAITING_SHARE = 0.08  # for an earlier job
GREEDY_SHARE = 0.15  # with twice the CPUs and memory that go with their GPUs
MODEST_SHARE = 0.25  # with half of them
LIMIT_FACTORS = (2.0, 5.0)  # of the run time
SIGMA = 0.9  # of the logarithm of run times
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDemand:
    """The cluster, and how much of it is asked for."""

    n_nodes: int
    gpus_per_node: int
    cpus_per_node: int
    memory_mb: int  # of a node
    span_s: float  # of submissions
    load: float  # GPU-seconds asked for, of all there are in the span
    typical_run_s: float  # the median
    seed: int


def generate(demand: GpuDemand) -> tuple[WorkloadItem, ...]:
    """Return the jobs in order of submission."""
    chance = random.Random(demand.seed)  # noqa: S311 - a workload, not a secret
    gpu_s_left = demand.load * demand.n_nodes * demand.gpus_per_node * demand.span_s
    jobs: list[WorkloadItem] = []
    while gpu_s_left > 0.0:
        job = _job(chance, demand)
        jobs.append(job)
        gpus = demand.gpus_per_node
        if job.share:
            gpus = job.gpus
        gpu_s_left -= job.n_nodes * gpus * job.duration_s * job.n_tasks
    arrivals_s = sorted(round(chance.uniform(0.0, demand.span_s), 3) for _ in jobs)
    items: list[WorkloadItem] = []
    for at_s, job in zip(arrivals_s, jobs, strict=True):
        after = None
        if items and chance.random() < WAITING_SHARE:
            after = chance.randrange(max(0, len(items) - 10), len(items))
        items.append(job.model_copy(update={"at_s": at_s, "after": after}))
    return tuple(items)


def _job(chance: random.Random, demand: GpuDemand) -> WorkloadItem:
    run_s = round(demand.typical_run_s * math.exp(SIGMA * chance.gauss(0.0, 1.0)), 3)
    run_s = max(1.0, min(run_s, demand.span_s / 4.0))
    limit_s = math.ceil(run_s * chance.uniform(*LIMIT_FACTORS) / MINUTE_S) * MINUTE_S
    if chance.random() < WHOLE_NODES_SHARE:
        n_nodes = min(LARGEST_WHOLE, demand.n_nodes)
        return WorkloadItem(at_s=0.0, n_nodes=n_nodes, duration_s=run_s, limit_s=limit_s)
    shares = {gpus: share for gpus, share in GPU_COUNTS if gpus <= demand.gpus_per_node}
    gpus = chance.choices(list(shares), list(shares.values()))[0]
    n_tasks = 1
    if gpus == 1 and chance.random() < ARRAY_SHARE:
        n_tasks = chance.randint(2, MOST_TASKS)
    portion = gpus / demand.gpus_per_node * _appetite(chance)
    return WorkloadItem(
        at_s=0.0,
        n_nodes=1,
        duration_s=run_s,
        limit_s=limit_s,
        gpus=gpus,
        cpus=max(1, min(demand.cpus_per_node, int(portion * demand.cpus_per_node))),
        memory_mb=max(1, min(demand.memory_mb, int(portion * demand.memory_mb))),
        n_tasks=n_tasks,
    )


def _appetite(chance: random.Random) -> float:
    """Return how much of CPUs and memory a job takes, of what goes with its GPUs."""
    position = chance.random()  # in 0 to 1
    if position < GREEDY_SHARE:
        return 2.0
    if position < GREEDY_SHARE + MODEST_SHARE:
        return 0.5
    return 1.0
