"""The end-to-end run on a real Slurm: one scripted story, told once, checked by many tests.

Two clusters get the same ordinary jobs at the same moments: one with
bftrainer, one without. The second bears the same processor load, being on the same
machine; what differs between them is bftrainer.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bftrainer.batch import process
from bftrainer.daemon.journal_replay import Again, take_again
from bftrainer.journal.projection import JournalEntry
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from bftrainer.model.views import StatusView
from milp.problem import Curve
from slurm_plugins.testcluster.cluster import SlurmTestCluster
from slurm_plugins.testcluster.config import FAST_CYCLE, ClusterConfig
from slurm_plugins.testcluster.workload import JobRecord, WorkloadItem, WorkloadRun
from tests.support.waiting import wait_for

SCRIPT = Path(__file__).with_name("train_digits.py")
BF_INTERVAL_S = 2
NETWORKS = ("mlp", "conv", "wide")
EPOCHS_PER_NODE = 5  # of the cluster: no trainer ends before the story does
GOLDEN_RATIO = 0.618  # multiples of it fill [0, 1) evenly
CURVE = Curve(sizes=(1, 2, 4, 8), samples_per_s=(100.0, 195.0, 370.0, 680.0))
POLICY = """\
poll_interval_s: 0.5
requests_per_minute: 1000
min_gap_s: 30
gap_margin_s: 5
pilot_time_limit_s: 600
t_fwd_s: 30
reserve_nodes_per_type: 0
join_window_s: 0.5
heartbeat_s: 0.5
agent_timeout_s: 5
hold_idle_s: 2
p_jmax: 3
"""


def ordinary_jobs(rounds: int, n_nodes: int = 8) -> list[WorkloadItem]:
    """Return rounds of 24 s: small jobs, one for half the nodes, one for all blocked behind it.

    While the latter waits, the other half of the nodes are unfillable for everybody whose
    limit is longer than that of the former. Moments of submission are spread evenly over the
    second: slurmctld starts most jobs from a loop that comes round once a second, and two
    controllers are out of step. At the same fraction of a second, all jobs of one cluster
    would wait up to a second longer than those of the other.
    """
    items: list[WorkloadItem] = []
    for begin in (4.0 + 24.0 * number for number in range(rounds)):
        items += [
            WorkloadItem(at_s=begin, n_nodes=1, duration_s=4, limit_s=60),
            WorkloadItem(at_s=begin + 2, n_nodes=n_nodes // 2, duration_s=9, limit_s=240),
            WorkloadItem(at_s=begin + 4, n_nodes=n_nodes, duration_s=2, limit_s=60),
            WorkloadItem(at_s=begin + 5.5, n_nodes=1, duration_s=3, limit_s=60),
            WorkloadItem(at_s=begin + 15, n_nodes=2, duration_s=3, limit_s=60),
            WorkloadItem(at_s=begin + 18, n_nodes=1, duration_s=2, limit_s=60, kind="srun"),
            WorkloadItem(at_s=begin + 21, n_nodes=2, duration_s=2, limit_s=60),
        ]
    return [
        item.model_copy(update={"at_s": item.at_s + index * GOLDEN_RATIO % 1.0})
        for index, item in enumerate(items)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that the tests look at."""

    rounds: int  # of ordinary jobs
    epochs: int
    trainers: dict[str, TrainerRecord]
    directories: dict[str, Path]
    accuracy: dict[str, float]
    fixed_accuracy: dict[str, float]  # of some: a run takes as much as an elastic trainer
    rescales: list[dict[str, Any]]
    parked: list[dict[str, Any]]
    gave_back_for_jobs: list[str]
    with_us: tuple[JobRecord, ...]
    without_us: tuple[JobRecord, ...]
    status: StatusView
    incarnations: int
    killed_worker: str  # by us
    killed_workers: list[str]  # as the journal tells it
    decisions: list[Again]  # of the journal, taken again


def spec(network: str, directory: Path, epochs: int) -> TrainerSpec:
    """Return the trainer for one network."""
    return TrainerSpec(
        name=network,
        user=getpass.getuser(),
        script=str(SCRIPT),
        args=("--network", network, "--out", str(directory), "--sample-ms", "4.0"),
        cwd=str(directory),
        interpreter=sys.executable,
        n_min=1,
        n_max=8,
        epochs=epochs,
        checkpoint_dir=str(directory / "checkpoints"),
        checkpoint_interval_s=2.0,
        curve=CURVE,
        environment=(("OMP_NUM_THREADS", "1"),),
    )


def run_scenario(base: Path, rounds: int, n_nodes: int) -> Outcome:
    """Play the story in so many rounds on so many nodes; leave no process behind in any case."""
    sites = [
        SlurmTestCluster(
            ClusterConfig(
                directory=base / name,
                n_nodes=n_nodes,
                bf_interval_s=BF_INTERVAL_S,
                scheduler_parameters=FAST_CYCLE,
            )
        )
        for name in ("with", "without")
    ]
    with sites[0] as site, sites[1] as control:
        sidecar = DaemonProcess(
            base / "state",
            batch_system="slurm",
            batch_options=site.config.batch_options(),
            policy=POLICY,
        )
        try:
            return _play(base, rounds, sidecar, site, control)
        finally:
            sidecar.stop()


def _play(
    base: Path,
    rounds: int,
    sidecar: DaemonProcess,
    site: SlurmTestCluster,
    control: SlurmTestCluster,
) -> Outcome:
    sidecar.start()
    n_nodes = site.config.n_nodes
    directories, epochs = {}, EPOCHS_PER_NODE * n_nodes
    for network in NETWORKS:
        directories[network] = base / network
        directories[network].mkdir()
        sidecar.client.submit(spec(network, directories[network], epochs))
    compared = NETWORKS if rounds > 1 else NETWORKS[:1]
    fixed = [_start_fixed_size_run(n, base / f"{n}-fixed", epochs) for n in compared]
    wait_for(lambda: _all_running(sidecar), timeout_s=180, what="all trainers run")
    items = ordinary_jobs(rounds, n_nodes)
    with WorkloadRun(site, items) as ours, WorkloadRun(control, items) as theirs:
        killed_worker = _lose_a_worker(sidecar)
        wait_for(lambda: _elapsed(ours) > 10 * rounds, what="the middle of the story")
        sidecar.kill()
        sidecar.start()
        assert ours.wait(240), ours.records()
        assert theirs.wait(120), theirs.records()
        with_us, without_us = ours.records(), theirs.records()
    _take_nodes_from_the_daemon(sidecar, site)
    for directory in directories.values():
        (directory / "hurry").touch()
    wait_for(lambda: _all_final(sidecar), timeout_s=240, what="all trainers finish")
    for child in fixed:
        assert child.wait(120) == 0
    status = sidecar.client.status()
    sidecar.stop()
    entries = sidecar.entries()
    return Outcome(
        rounds=rounds,
        epochs=epochs,
        trainers={t.record.spec.name: t.record for t in status.trainers},
        directories=directories,
        accuracy={n: _accuracy(directories[n]) for n in NETWORKS},
        fixed_accuracy={n: _accuracy(base / f"{n}-fixed") for n in compared},
        rescales=[e.payload for e in entries if e.kind == "rescaled"],
        parked=[e.payload for e in entries if e.kind == "parked"],
        gave_back_for_jobs=_gave_back_for(entries),
        with_us=with_us,
        without_us=without_us,
        status=status,
        incarnations=max(e.incarnation for e in entries),
        killed_worker=killed_worker,
        killed_workers=_killed_workers(entries),
        decisions=list(take_again(entries)),
    )


def _gave_back_for(entries: Sequence[JournalEntry]) -> list[str]:
    return [
        release["for_job"]
        for e in entries
        if e.kind == "decision"
        for release in e.payload["plan"]["releases"]
        if release["for_job"]
    ]


def _take_nodes_from_the_daemon(sidecar: DaemonProcess, site: SlurmTestCluster) -> None:
    """Submit further jobs if Slurm was always first: the daemon was away, or the machine busy."""
    for _ in range(5):
        if _gave_back_for(sidecar.entries("decision")):
            return
        wait_for(
            lambda: any(t.observed_nodes for t in sidecar.client.trainers()),
            what="a trainer has nodes",
        )
        job = site.submit(n_nodes=site.config.n_nodes, duration_s=1, limit_s=60)
        wait_for(partial(_is_gone, site, job), what="the job's end")


def _is_gone(site: SlurmTestCluster, job: str) -> bool:
    return job not in site.command("squeue", "-h", "-o", "%i").stdout.split()


def _start_fixed_size_run(network: str, directory: Path, epochs: int) -> subprocess.Popen[bytes]:
    """The same script, run plainly: one process, no daemon."""
    directory.mkdir()
    argv = [sys.executable, str(SCRIPT), "--network", network, "--out", str(directory)]
    argv += ["--epochs", str(epochs)]
    with (directory / "log").open("wb") as log:
        return process.spawn(
            argv, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=log, stderr=log
        )


def _lose_a_worker(sidecar: DaemonProcess) -> str:
    """SIGKILL workers until one is missed, not on its way out anyway; return its id."""
    for _ in range(5):
        worker_id = _kill_a_worker(sidecar)
        if _is_missed(sidecar, worker_id):
            return worker_id
    raise AssertionError("none of five workers that were killed was missed")


def _is_missed(sidecar: DaemonProcess, worker_id: str) -> bool:
    """Whether the daemon soon notes that it failed; of one that was leaving it does not."""
    try:
        wait_for(
            lambda: worker_id in _killed_workers(sidecar.entries("worker-failed")), timeout_s=10
        )
    except AssertionError:
        return False
    return True


def _killed_workers(entries: Sequence[JournalEntry]) -> list[str]:
    found = [e.payload["what"] for e in entries if e.kind == "worker-failed"]
    return [what["worker_id"] for what in found if "signal 9" in what["cause"]]


def _kill_a_worker(sidecar: DaemonProcess) -> str:
    """SIGKILL one worker of a trainer that has at least two; return its id."""

    def victim() -> tuple[int, str] | None:
        for view in sidecar.client.trainers():
            if len(view.observed_nodes) >= 2:
                return _worker_of(view.record)
        return None

    pid, worker_id = wait_for(victim, what="a trainer of size 2 or more")
    os.kill(pid, signal.SIGKILL)
    return worker_id


def _worker_of(record: TrainerRecord) -> tuple[int, str] | None:
    """Find a worker process by the log it writes to."""
    for entry in Path("/proc").iterdir():
        try:
            target = (entry / "fd" / "1").readlink()
        except OSError:
            continue
        if str(target).startswith(f"{record.spec.checkpoint_dir}/logs/{record.trainer_id}-"):
            return int(entry.name), target.stem
    return None


def _elapsed(run: WorkloadRun) -> float:
    return time.time() - (run.began_s or time.time())


def _all_running(sidecar: DaemonProcess) -> bool:
    return all(t.observed_nodes for t in sidecar.client.trainers())


def _all_final(sidecar: DaemonProcess) -> bool:
    return all(t.record.state.is_final for t in sidecar.client.trainers())


def _accuracy(directory: Path) -> float:
    return float(json.loads((directory / "result.json").read_text())["accuracy"])
