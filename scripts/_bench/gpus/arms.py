"""One seed of ``bench_gpus``: several real clusters at once, the same jobs at the same instants.

Each arm has a cluster of its own with a shared-node Slurm and GPUs that are files. The jobs begin
at the same phase of each cluster's own backfill cycle, so that a job meets the scheduler alike in
all arms; the clusters' starts differ by less than a cycle. Leaves no process and no directory.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from _bench import sdiag
from _bench.gpus import predicted
from _bench.gpus.measures import ArmRun, OrdinaryJob, Pilot
from _bench.real_slurm import cycles, slurm_log
from _bench.real_slurm.light import light_trainers, wait_for_nodes
from _bench.real_slurm.slurm_log import SlurmLog
from _bench.waiting import BenchError
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.lab.site.sharing import NodeCapacity
from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster
from slurm_plugins.testcluster.gpu_jobs import GpuDemand, generate
from slurm_plugins.testcluster.jobs import Share
from slurm_plugins.testcluster.workload import JobRecord, WorkloadItem, WorkloadRun

N_NODES = 6
GPUS_PER_NODE = 4
CPUS_PER_NODE = 16
MEMORY_MB = 16_000
PILOTS = "bf"  # their partition
BF_INTERVAL_S = 5
PHASE = 0.4  # of that interval, after the begin of a cycle
TYPICAL_RUN_S = 40.0  # about 90 jobs in ten minutes, as in the administrators' hour
N_TRAINERS = 3
N_PREDICTIONS = 6  # of each seed
SUBMITTING_S = 0.2  # within which a submission reaches the scheduler
BATCH_DELAY_S = 3  # Slurm's default
SETTLE_S = 300.0  # for all arms to be ready
DRAIN_S = 400.0  # after the last submission, for the last job
# The policy of the administrators' hour: gaps are a minute long here, not an hour.
POLICY = {"min_gap_s": 20, "gap_margin_s": 10, "reserve_nodes_per_type": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to use the idle GPUs, or none."""

    name: str
    has_daemon: bool = True
    lend: str = "nodes"  # of the policy
    gpus_per_pilot: int = GPUS_PER_NODE

    @property
    def n_pilots(self) -> int:
        """How many pilots an empty cluster holds."""
        return N_NODES * GPUS_PER_NODE // self.gpus_per_pilot


ARMS = (
    Arm(name="without", has_daemon=False),
    Arm(name="again", has_daemon=False),
    Arm(name="parts", lend="auto", gpus_per_pilot=1),
    Arm(name="whole"),
    # What pilots of several GPUs would lend and lose: why a pilot has one unit (ADR 48).
    Arm(name="pairs", lend="auto", gpus_per_pilot=2),
    Arm(name="fours", lend="auto", gpus_per_pilot=4),
)
USUAL = ("without", "again", "parts", "whole")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all seeds share."""

    span_s: float  # of submissions
    load: float
    batch_delay_s: int  # Slurm's batch_sched_delay
    typical_run_s: float  # the median of the jobs
    say: Callable[[str], None]


def play(settings: Settings, arms: Sequence[Arm], seed: int) -> list[ArmRun]:
    """Run the jobs of a seed on all arms at once.

    Raises:
        BenchError, BftError: an arm did not come to its end.
    """
    items = workload(settings, seed)
    settings.say(f"seed {seed}: {sum(item.n_tasks for item in items)} jobs")
    start_together = threading.Barrier(len(arms))
    with ThreadPoolExecutor(len(arms)) as pool:
        futures = [pool.submit(_play, settings, arm, seed, items, start_together) for arm in arms]
        return [future.result() for future in futures]


def workload(settings: Settings, seed: int) -> tuple[WorkloadItem, ...]:
    """Return the jobs of a seed."""
    demand = GpuDemand(
        n_nodes=N_NODES,
        gpus_per_node=GPUS_PER_NODE,
        cpus_per_node=CPUS_PER_NODE,
        memory_mb=MEMORY_MB,
        span_s=settings.span_s,
        load=settings.load,
        typical_run_s=settings.typical_run_s,
        seed=seed,
    )
    return generate(demand)


def predict(settings: Settings, seed: int) -> list[tuple[ArmRun, ArmRun]]:
    """Return the jobs of a seed on the simulated site: without bftrainer, and with whole nodes.

    Several times, each with the submissions a little later, as they are on real clusters: what one
    of them shows may be chance, as it may be there.
    """
    capacity = NodeCapacity(cpus=CPUS_PER_NODE, memory_mb=MEMORY_MB, gpus=(("", GPUS_PER_NODE),))
    slurm = predicted.settings_of(
        n_nodes=N_NODES,
        capacity=capacity,
        bf_interval_s=BF_INTERVAL_S,
        batch_delay_s=settings.batch_delay_s,
        phase=PHASE,
    )
    chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
    pairs = []
    for _ in range(N_PREDICTIONS):
        items = [
            item.model_copy(update={"at_s": item.at_s + chance.uniform(0.0, SUBMITTING_S)})
            for item in workload(settings, seed)
        ]
        play_arm = partial(
            predicted.play,
            items,
            slurm,
            seed=seed,
            span_s=settings.span_s,
            gpus_per_node=GPUS_PER_NODE,
        )
        without = play_arm(arm="without, predicted")
        pairs.append((without, play_arm(arm="whole, predicted", policy_values=POLICY)))
    return pairs


def _play(
    settings: Settings,
    arm: Arm,
    seed: int,
    items: Sequence[WorkloadItem],
    ready: threading.Barrier,
) -> ArmRun:
    directory = Path(tempfile.mkdtemp(prefix="bft-gpus-", dir="/tmp"))
    directory.chmod(0o755)  # ordinary users' jobs must reach the cluster's directory
    config = ClusterConfig(
        directory=directory / "c",
        n_nodes=N_NODES,
        gpus_per_node=GPUS_PER_NODE,
        cpus_per_node=CPUS_PER_NODE,
        memory_mb=MEMORY_MB,
        bf_interval_s=BF_INTERVAL_S,
        scheduler_parameters=f"batch_sched_delay={settings.batch_delay_s},sched_min_interval=0",
        has_hook=True,
    )
    try:
        with SlurmTestCluster(config) as cluster:
            log = cycles.note(cluster)
            with _sidecar(directory, cluster, arm):
                return _run(settings, arm, seed, items, cluster, log, ready)
    except BaseException:
        ready.abort()  # nobody waits for this one
        raise
    finally:
        # A step that ends late may still write here: that is no reason to lose the run.
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _sidecar(directory: Path, cluster: SlurmTestCluster, arm: Arm) -> Iterator[None]:
    """Run a daemon whose trainers hold all GPUs, if the arm has one."""
    if not arm.has_daemon:
        yield
        return
    sidecar = DaemonProcess(
        directory / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(),
        policy=json.dumps(POLICY | {"lend": arm.lend}),  # which is YAML, too
    )
    try:
        sidecar.start()
        gpus_per_unit = 0
        if arm.lend == "auto":
            gpus_per_unit = arm.gpus_per_pilot
        for trainer in light_trainers(directory, N_TRAINERS, arm.n_pilots):
            sidecar.client.submit(replace(trainer, gpus_per_unit=gpus_per_unit))
        wait_for_nodes(sidecar, arm.n_pilots)
        yield
    finally:
        sidecar.stop()


def _run(
    settings: Settings,
    arm: Arm,
    seed: int,
    items: Sequence[WorkloadItem],
    cluster: SlurmTestCluster,
    log: Path,
    ready: threading.Barrier,
) -> ArmRun:
    ready.wait(SETTLE_S)
    origin_s = cycles.at_phase(cluster, log, PHASE)
    cluster.command("sdiag", "--reset")
    run = WorkloadRun(cluster, items)
    try:
        run.start(origin_s)
        time.sleep(max(0.0, origin_s + settings.span_s - time.time()))
        load = sdiag.parse(cluster.command("sdiag").stdout)
        if not run.wait(DRAIN_S):
            raise BenchError(f"{arm.name}, seed {seed}: jobs had not ended {DRAIN_S:g} s later")
    finally:
        run.stop()
    records = run.records()
    errors = [record.error for record in records if record.error]
    if errors:
        raise BenchError(f"{arm.name}, seed {seed}: a job was refused: {errors[0]}")
    ordinary = {(record.job_id or "").partition("_")[0] for record in records}
    controller = slurm_log.read(log.read_text(errors="replace"))
    settings.say(f"seed {seed}, {arm.name}: done")
    return ArmRun(
        arm=arm.name,
        seed=seed,
        nodes=cluster.config.node_names,
        gpus_per_node=GPUS_PER_NODE,
        span_s=settings.span_s,
        bf_interval_s=BF_INTERVAL_S,
        jobs=tuple(_job(record, origin_s) for record in records),
        pilots=tuple(pilots_of(controller, arm.gpus_per_pilot, origin_s)),
        n_submitted=submitted_since(controller, origin_s, ordinary),
        n_requests=sum(load.rpcs.values()),
        cpus_per_node=CPUS_PER_NODE,
        memory_mb=MEMORY_MB,
    )


def _job(record: JobRecord, origin_s: float) -> OrdinaryJob:
    share = record.item.share
    if share is None:  # whole nodes
        share = Share(gpus=GPUS_PER_NODE, cpus=CPUS_PER_NODE, memory_mb=MEMORY_MB)
    return OrdinaryJob(
        key=(record.number, record.task),
        gpus_per_node=share.gpus,
        cpus=share.cpus,
        memory_mb=share.memory_mb,
        submitted_s=(record.submitted_s or 0.0) - origin_s,
        started_s=(record.started_s or math.inf) - origin_s,
        ended_s=(record.ended_s or math.inf) - origin_s,
        nodes=record.nodes,
    )


def pilots_of(log: SlurmLog, gpus: int, origin_s: float) -> Iterator[Pilot]:
    """Yield the pilots that ran; of Slurm's log, so that no daemon judges itself."""
    for job_id, start in sorted(log.starts.items(), key=lambda started: started[1].at_s):
        if start.partition == PILOTS:
            yield Pilot(
                node=start.nodes[0],
                gpus=gpus,
                started_s=start.at_s - origin_s,
                ended_s=log.ends_s.get(job_id, math.inf) - origin_s,
                is_preempted=job_id in log.preempted,
            )


def submitted_since(log: SlurmLog, from_s: float, ordinary: Collection[str]) -> int:
    """Count the pilots, whether or not they ran; ``ordinary``: jobs that are none."""
    since_s = [at_s for job_id, at_s in log.accepted_s.items() if job_id not in ordinary]
    return sum(at_s >= from_s for at_s in since_s)
