"""The cluster of ``demo --slurm``: a real Slurm whose nodes are slurmds on this machine.

Imported by ``run`` only if it is requested.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bftrainer.demo.clusters import Cluster
from bftrainer.demo.summary import OrdinaryJobsSummary, background
from bftrainer.local.replay import PastJob, start_times_s
from bftrainer.local.workload import JobWorkload
from slurm_plugins.testcluster import FAST_CYCLE, ClusterConfig, SlurmTestCluster
from slurm_plugins.testcluster.workload import JobRecord, WorkloadItem, WorkloadRun

CYCLE_S = 2
_BY_ESTIMATE = (
    "start noted by each job minus its start in a replay of the same jobs through a simple "
    "first-come-first-served scheduler with backfill, less what Slurm itself needs to start a "
    "job (the fastest start of this run): an estimate, Slurm's own order may differ"
)


class SlurmDemoCluster:
    """Slurm's own daemons and a thread that submits ordinary jobs."""

    batch_system = "slurm"

    def __init__(self, cluster: SlurmTestCluster, run: WorkloadRun) -> None:
        self.batch_options: Mapping[str, str] = cluster.config.batch_options()
        self._n_nodes = cluster.config.n_nodes
        self._run = run

    def start_workload(self) -> None:
        """Begin to submit ordinary jobs."""
        self._run.start()

    def stop_workload(self) -> None:
        """Submit no more of them."""
        self._run.stop()

    def background(self) -> OrdinaryJobsSummary:
        """Sum up what the ordinary jobs saw."""
        records = self._run.records()
        waits = {r.job_id: r.wait_s for r in records if r.job_id and r.wait_s is not None}
        return background(waits, estimated_delays_s(records, self._n_nodes), _BY_ESTIMATE)


def estimated_delays_s(records: Sequence[JobRecord], n_nodes: int) -> dict[str, float]:
    """How much later each job started than it might have without pilots."""
    jobs = [
        PastJob(
            job_id=record.job_id,
            n_nodes=record.item.n_nodes,
            limit_s=_limit_s(record.item),
            submit_s=record.submitted_s,
            duration_s=record.item.duration_s,
        )
        for record in records
        if record.job_id is not None and record.submitted_s is not None
    ]
    nodes = [f"n{number}" for number in range(1, n_nodes + 1)]
    ideal_s = start_times_s(jobs, nodes=nodes, cycle_s=float(CYCLE_S))
    late_s = {
        record.job_id: record.started_s - ideal_s[record.job_id]
        for record in records
        if record.job_id in ideal_s and record.started_s is not None
    }
    # sbatch, the controller and slurmd take their time whoever has the nodes.
    launch_s = max(0.0, min(late_s.values(), default=0.0))
    return {job_id: late - launch_s for job_id, late in late_s.items()}


def _limit_s(item: WorkloadItem) -> float:
    """The job's limit as the test cluster submits it: whole minutes."""
    return 60.0 * max(1, math.ceil((item.limit_s or item.duration_s + 5.0) / 60.0))


@contextlib.contextmanager
def slurm_cluster(directory: Path, n_nodes: int, workload: JobWorkload) -> Iterator[Cluster]:
    """Run a real Slurm for as long as the block lasts."""
    config = ClusterConfig(
        directory=directory,
        n_nodes=n_nodes,
        gpus_per_node=0,
        bf_interval_s=CYCLE_S,
        scheduler_parameters=FAST_CYCLE,
        kill_wait_s=2,
    )
    items = tuple(
        WorkloadItem(at_s=i.at_s, n_nodes=i.n_nodes, duration_s=i.duration_s, limit_s=i.limit_s)
        for i in workload.items
    )
    cluster = SlurmTestCluster(config)
    run = WorkloadRun(cluster, items)
    try:  # not ``with``: an interrupt while it comes up must take it down, too
        cluster.up()
        yield SlurmDemoCluster(cluster, run)
    finally:
        run.stop()
        cluster.down()
