"""Short runs on a real Slurm without bftrainer: jobs of whole nodes, or jobs that share nodes.

Jobs of GPUs come from ``gpu_jobs``; every tenth of those that share a node asks for no GPU. In
every second run of them the nodes' GPUs are of two types, and a third of the jobs ask for one.
Each run has a cluster of its own, and leaves no process and no directory.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from _bench.real_slurm import cycles, slurm_log, workload
from _bench.real_slurm.slurm_log import SlurmLog
from _bench.site.real import PREEMPTABLE, NotedJob, RealRun, RunKind, preemptable_of
from _bench.waiting import BenchError, wait_until
from bftrainer.lab.site.machine import JobSpec
from bftrainer.lab.site.sharing import NodeCapacity, Share
from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster, gpu_jobs
from slurm_plugins.testcluster.jobs import Share as AskedShare
from slurm_plugins.testcluster.workload import JobRecord, WorkloadItem, WorkloadRun

BF_INTERVAL_S = 10
PHASE = 0.4  # of that interval, after the begin of a cycle
N_WHOLE_NODES = 16
JOBS_PER_MINUTE = 25
LOAD = 1.0
MINUTE_S = 60.0
DRAIN_S = 120.0  # and half as long again as the submissions
# Nodes that jobs share.
N_SHARED_NODES = 6
GPUS_PER_NODE = 4
CPUS_PER_NODE = 16
MEMORY_MB = 16_000
TYPES = ("a100", "v100")  # of the first and of the second half of the nodes, where there are types
TYPICAL_RUN_S = 12.0
CPU_ONLY_SHARE = 0.1  # of the jobs that take a part of a node
TYPED_SHARE = 1 / 3  # of the jobs with GPUs
# Preemptable jobs: enough for all that are preempted.
SLOT = Share(cpus=CPUS_PER_NODE // GPUS_PER_NODE, memory_mb=MEMORY_MB // GPUS_PER_NODE, gpus=1)
N_PREEMPTABLE = 300
PREEMPTABLE_S = 3600.0
SETTLE_S = 90.0  # until they run: a cycle of backfill or two


def play_whole(seed: int, minutes: float) -> RealRun:
    """Run whole-node jobs that wait for each other.

    Raises:
        BenchError, BftError: the run did not come to its end.
    """
    items = workload.generate(
        workload.Demand(
            n_jobs=round(JOBS_PER_MINUTE * minutes),
            n_nodes=N_WHOLE_NODES,
            minutes=minutes,
            load=LOAD,
            seed=seed,
        )
    )
    with _cluster(_whole_config) as cluster:
        return _run_items(cluster, items, minutes).noted("whole nodes", seed, N_WHOLE_NODES)


def _whole_config(directory: Path) -> ClusterConfig:
    """Return a cluster without the hook: with its script, ends call passes or do not, by chance."""
    return ClusterConfig(
        directory=directory, n_nodes=N_WHOLE_NODES, gpus_per_node=0, bf_interval_s=BF_INTERVAL_S
    )


def play_shared(seed: int, minutes: float) -> RealRun:
    """Run jobs that share nodes, and wait for each other.

    Raises:
        BenchError, BftError: the run did not come to its end.
    """
    has_types = seed % 2 == 0
    items = shared_items(seed, MINUTE_S * minutes, has_types=has_types)
    with _cluster(partial(_shared_config, has_types=has_types)) as cluster:
        run = _run_items(cluster, items, minutes).noted("GPUs", seed, N_SHARED_NODES)
        if has_types:
            run = replace(run, name=f"GPUs, types, seed {seed}")
        return replace(run, capacities=tuple(map(_capacity, cluster.config.gres)))


def play_preempting(seed: int, minutes: float) -> RealRun:
    """Run jobs that share nodes on a cluster whose free GPUs all have preemptable jobs.

    These have a GPU each, with the CPUs and the memory that go with it; with an even seed they
    have a node each.

    Raises:
        BenchError, BftError: the run did not come to its end.
    """
    items = shared_items(seed, MINUTE_S * minutes, has_types=False)
    share = None if seed % 2 == 0 else SLOT
    with _cluster(partial(_shared_config, has_types=False)) as cluster:
        n_free = N_SHARED_NODES * (GPUS_PER_NODE if share else 1)
        for _ in range(N_PREEMPTABLE):
            cluster.submit(
                n_nodes=1,
                duration_s=PREEMPTABLE_S,
                limit_s=PREEMPTABLE_S,
                partition=PREEMPTABLE,
                share=None if share is None else _as_asked(share),
            )
        wait_until(
            lambda: _n_running(cluster) >= n_free,
            f"{n_free} preemptable jobs run",
            patience_s=SETTLE_S,
            interval_s=0.5,
        )
        ran = _run_items(cluster, items, minutes)
        return replace(
            ran.noted("GPUs, preempting", seed, N_SHARED_NODES),
            capacities=tuple(map(_capacity, cluster.config.gres)),
            preemptable=preemptable_of(ran.log, ran.origin_s, share, PREEMPTABLE_S),
        )


def _as_asked(share: Share) -> AskedShare:
    return AskedShare(**asdict(share))


def _n_running(cluster: SlurmTestCluster) -> int:
    listed = cluster.command("squeue", "-h", "-p", PREEMPTABLE, "-t", "RUNNING", "-o", "%A")
    return len(listed.stdout.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """What became of some items."""

    origin_s: float  # epoch
    records: Sequence[JobRecord]
    log: SlurmLog

    def noted(self, kind: RunKind, seed: int, n_nodes: int) -> RealRun:
        """Return it as a run of that name."""
        jobs, name = _noted_jobs(self.records), f"{kind}, seed {seed}"
        return RealRun.of(jobs, self.log, self.origin_s, name=name, kind=kind, n_nodes=n_nodes)


def _run_items(cluster: SlurmTestCluster, items: Sequence[WorkloadItem], minutes: float) -> _Ran:
    """Run jobs to the end of the last one; an immediate one may be refused."""
    log = cycles.note(cluster)
    run = WorkloadRun(cluster, items)
    origin_s = cycles.at_phase(cluster, log, PHASE)
    try:
        run.start(origin_s)
        is_done = run.wait(1.5 * MINUTE_S * minutes + DRAIN_S)
    finally:
        run.stop()
    records = [r for r in run.records() if not (r.error and r.item.kind == "immediate")]
    refusals = [record.error for record in records if record.error]
    if refusals or not is_done:
        raise BenchError(f"jobs had not ended in time, or were refused: {refusals[:1]}")
    text = log.read_text(encoding="utf-8", errors="replace")
    return _Ran(origin_s=origin_s, records=records, log=slurm_log.read(text))


def shared_items(seed: int, span_s: float, *, has_types: bool) -> list[WorkloadItem]:
    """Return the jobs that share nodes; some without a GPU, some that ask for a type."""
    items = gpu_jobs.generate(
        gpu_jobs.GpuDemand(
            n_nodes=N_SHARED_NODES,
            gpus_per_node=GPUS_PER_NODE,
            cpus_per_node=CPUS_PER_NODE,
            memory_mb=MEMORY_MB,
            span_s=span_s,
            load=LOAD,
            typical_run_s=TYPICAL_RUN_S,
            seed=seed,
        )
    )
    chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
    return [_varied(item, chance, has_types=has_types) for item in items]


def _varied(item: WorkloadItem, chance: random.Random, *, has_types: bool) -> WorkloadItem:
    if not item.gpus:
        return item
    if chance.random() < CPU_ONLY_SHARE:
        return item.model_copy(update={"gpus": 0})
    if has_types and chance.random() < TYPED_SHARE:
        return item.model_copy(update={"gpu_type": chance.choice(TYPES)})
    return item


def _shared_config(directory: Path, *, has_types: bool) -> ClusterConfig:
    types: tuple[tuple[str, str], ...] = ()
    if has_types:
        half = N_SHARED_NODES // len(TYPES)
        types = tuple((f"gpu:{kind}:{GPUS_PER_NODE}", "") for kind in TYPES for _ in range(half))
    return ClusterConfig(
        directory=directory,
        n_nodes=N_SHARED_NODES,
        gpus_per_node=GPUS_PER_NODE,
        cpus_per_node=CPUS_PER_NODE,
        memory_mb=MEMORY_MB,
        bf_interval_s=BF_INTERVAL_S,
        node_types=types,
    )


def _capacity(gres: str) -> NodeCapacity:
    """Return what a node has; ``gres`` is gpu:4, or gpu:a100:4."""
    _, *kind, count = gres.split(":")
    return NodeCapacity(
        cpus=CPUS_PER_NODE, memory_mb=MEMORY_MB, gpus=(("".join(kind), int(count)),)
    )


def _noted_jobs(records: Sequence[JobRecord]) -> Iterator[NotedJob]:
    ids = {record.number: (record.job_id or "").partition("_")[0] for record in records}
    for record in sorted(records, key=lambda record: (record.submitted_s or 0.0, record.task)):
        item = record.item
        share = None
        if item.share:
            share = Share(**asdict(item.share))
        yield NotedJob(
            job_id=record.job_id or "",
            spec=_spec(item.n_nodes, item.limit_s or 0.0, item.kind, share),
            submitted_s=record.submitted_s or 0.0,
            started_s=record.started_s or 0.0,
            ended_s=record.ended_s or 0.0,
            nodes=record.nodes,
            after="" if item.after is None else ids[item.after],
        )


def _spec(n_nodes: int, limit_s: float, kind: workload.Kind, share: Share | None = None) -> JobSpec:
    return JobSpec(
        number=0, submit_s=0.0, n_nodes=n_nodes, limit_s=limit_s, run_s=0.0, kind=kind, share=share
    )


@contextmanager
def _cluster(config: Callable[[Path], ClusterConfig]) -> Iterator[SlurmTestCluster]:
    """Run a cluster in a directory of its own."""
    directory = Path(tempfile.mkdtemp(prefix="bft-site-", dir="/tmp"))
    directory.chmod(0o755)  # ordinary users' jobs must reach the cluster's directory
    try:
        with SlurmTestCluster(config(directory / "c")) as cluster:
            yield cluster
    finally:
        # A step that ends late may still write here: that is no reason to lose the run.
        shutil.rmtree(directory, ignore_errors=True)
