"""The three walks of ARCHITECTURE.md on this machine, recorded; called by ``trace_walks``."""

from __future__ import annotations

import asyncio
import getpass
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from _bench.waiting import wait_until

from bftrainer.batch.local.client import LocalServer, start_server
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerSpec
from slurm_plugins.testcluster.cluster import SlurmTestCluster
from slurm_plugins.testcluster.config import FAST_CYCLE, ClusterConfig
from tests.support.plane import Plane
from tests.support.traced import ROOT, Recorder, first_s, read, wrapper

SCRIPTS: Final = ROOT / "tests" / "elastic" / "scripts"
PATIENCE_S: Final = 300.0
JOB_S: Final = 15.0
POLICY = "reserve_nodes_per_type: 0\nmin_gap_s: 60\ngap_margin_s: 5\n"
Walk = dict[str, int]  # module -> lines executed


@contextmanager
def interpreter(path: str) -> Iterator[None]:
    """Have processes started with another interpreter."""
    usual, sys.executable = sys.executable, path
    try:
        yield
    finally:
        sys.executable = usual


class Site(Protocol):
    """A batch system of one node, and ordinary jobs on it."""

    batch_system: str
    options: dict[str, str]

    def submit(self) -> str:
        """Submit a job of one node and ``JOB_S``; return its id."""

    def is_running(self, job_id: str) -> bool:
        """Return whether a job runs."""


class LocalSite:
    """The embedded batch system, which has no hook."""

    batch_system = "local"

    def __init__(self, server: LocalServer) -> None:
        self._client = server.client
        self.options = {"socket": str(server.socket_path)}

    def submit(self) -> str:
        """Submit a job of one node and ``JOB_S``; return its id."""
        return self._client.submit(n_nodes=1, limit_s=2 * JOB_S, duration_s=JOB_S)

    def is_running(self, job_id: str) -> bool:
        """Return whether a job runs."""
        jobs = self._client.request("snapshot")["jobs"]
        return any(j["job_id"] == job_id and j["state"] == "running" for j in jobs)


class SlurmSite:
    """A real Slurm with the hook."""

    batch_system = "slurm"

    def __init__(self, cluster: SlurmTestCluster) -> None:
        self._jobs = cluster.jobs
        self.options = cluster.config.batch_options()

    def submit(self) -> str:
        """Submit a job of one node and ``JOB_S``; return its id."""
        return self._jobs.submit(n_nodes=1, limit_s=60.0, duration_s=JOB_S)

    def is_running(self, job_id: str) -> bool:
        """Return whether a job runs."""
        noted = self._jobs.noted_s
        return noted(job_id, "START") is not None and noted(job_id, "END") is None


def on_local_site(directory: Path) -> dict[str, Walk]:
    """Trace the walks of an idle node and of a job on the local batch system."""
    with start_server(directory / "local", n_nodes=1, cycle_s=0.5) as server:
        return _trace(directory, LocalSite(server))


def on_slurm(directory: Path) -> dict[str, Walk]:
    """Trace the same walks on a real Slurm of one node."""
    config = ClusterConfig(
        directory=directory / "slurm",
        n_nodes=1,
        bf_interval_s=1,
        scheduler_parameters=FAST_CYCLE,
        has_hook=True,
    )
    with SlurmTestCluster(config) as cluster:
        walks = _trace(directory, SlurmSite(cluster))
    return {f"{name}, Slurm": walk for name, walk in walks.items()}


def _trace(directory: Path, site: Site) -> dict[str, Walk]:
    records, notes = directory / "records", directory / "notes"
    records.mkdir()
    notes.mkdir()
    with interpreter(wrapper(records)):
        daemon = DaemonProcess(
            directory / "state",
            batch_system=site.batch_system,
            batch_options=site.options,
            policy=POLICY,
        )
        spec = _spec(directory, notes)
        try:
            daemon.start()
            first = site.submit()
            _wait(lambda: site.is_running(first), "a job runs")
            daemon.client.submit(spec)
            _wait(lambda: not site.is_running(first), "the job ends")
            began_s = time.monotonic()
            _wait(lambda: any(notes.iterdir()), "a first step")
            trained_s = time.monotonic()
            time.sleep(5.0)  # what the claim left to do
            announced_s = time.monotonic()
            second = site.submit()
            _wait(lambda: site.is_running(second), "the job gets the node")
            gone_s = time.monotonic()
            time.sleep(1.0)  # records are written with a delay
        finally:
            daemon.stop()
    spans = {
        "idle node": (began_s, trained_s),
        "idle node, to its pilot": (began_s, first_s(records, "trainers/agent", began_s)),
        "announced job": (announced_s, gone_s),
    }
    return {name: _walk(records, *span) for name, span in spans.items()}


def _spec(directory: Path, notes: Path) -> TrainerSpec:
    return TrainerSpec(
        name="walk",
        user=getpass.getuser(),
        script=str(SCRIPTS / "claim_small.py"),
        cwd=str(directory),
        interpreter=sys.executable,
        n_min=1,
        n_max=1,
        checkpoint_dir=str(directory / "checkpoints"),
        environment=(("BENCH_CLAIMS", str(notes)), ("SLURMD_NODENAME", "n0")),
    )


def _wait(condition: Callable[[], bool], what: str) -> None:
    wait_until(lambda: condition() or None, what, patience_s=PATIENCE_S)


async def on_plane(directory: Path) -> Walk:
    """Trace a rescale from one worker to two."""
    records, steps = directory / "records", directory / "steps"
    records.mkdir(parents=True)
    steps.mkdir()
    own = Recorder(records)
    with interpreter(wrapper(records)):
        plane = Plane(
            directory,
            agents=2,
            script=ROOT / "scripts" / "workloads" / "rescale_elastic.py",
            model="small",
            environment={"BENCH_RECORDS": str(steps)},
        )
        async with plane:
            plane.set_nodes(["n0"])
            await plane.until(lambda: any(steps.iterdir()), "it trains", PATIENCE_S)
            began_s = time.monotonic()
            own.start()
            plane.set_nodes(["n0", "n1"])
            await plane.until(lambda: len(plane.members()) > 1, "two train", PATIENCE_S)
            own.stop()
            ended_s = time.monotonic()
            await asyncio.sleep(1.0)  # records are written with a delay
    return _walk(records, began_s, ended_s)


def _walk(records: Path, began_s: float, ended_s: float) -> Walk:
    found = read(records, began_s, ended_s)
    return {name: len(executed) for name, executed in sorted(found.items())}
