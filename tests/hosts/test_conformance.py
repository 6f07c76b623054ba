"""The Slurm adapter on a login host, controller and five nodes on others."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import BatchSystem
from slurm_plugins.adapter import SlurmBatchSystem, create
from tests.conformance.batch_system import BatchSystemConformance, ClusterDriver
from tests.conformance.busy import busy
from tests.integration.slurm_fixtures import enterable_directory
from tests.support.hosts import Cluster, running_hosts

pytestmark = [pytest.mark.slurm, pytest.mark.long]
COMMANDS = ("sbatch", "squeue", "scontrol", "sinfo", "scancel", "sdiag")


class HostsDriver:
    """The hosts in the words of the conformance tests."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self.directory = directory
        self.gpus_per_node = 0
        self.preempts = True

    def node_names(self) -> tuple[str, ...]:
        return self._cluster.plan.nodes

    def submit_ordinary(self, *, n_nodes: int, limit_s: float, duration_s: float) -> str:
        note = f"{self.directory}/started-$SLURM_JOB_ID"
        script = f"date +%s.%N > {note}.tmp; mv {note}.tmp {note}; sleep {duration_s}"
        limit = time.strftime("%H:%M:%S", time.gmtime(limit_s))
        size = (f"-N{n_nodes}", "--exclusive", f"-t{limit}", "-o/dev/null")
        argv = ("sbatch", "--parsable", *size, f"--wrap={script}")
        return self._cluster.does("login", *argv, user="bob").strip()

    def job_started_s(self, job_id: str) -> float | None:
        note = self.directory / f"started-{job_id}"
        return float(note.read_text()) if note.exists() else None

    def cancel(self, job_id: str) -> None:
        self._cluster.run("login", "scancel", job_id)

    def stop_controller(self) -> None:
        self._cluster.stop_slurm("ctl")

    def start_controller(self) -> None:
        if not self._cluster.processes("ctl", "slurmctld"):
            self._cluster.start_slurm("ctl")


@pytest.fixture(scope="module")
def driver() -> Iterator[HostsDriver]:
    """Five hosts; the login host's commands are those of this process."""
    directory = enterable_directory()
    scratch = directory / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    path = os.environ["PATH"]
    try:
        with (
            running_hosts(n_nodes=5, shared=(str(directory),)) as cluster,
            busy(lambda *argv: cluster.run("login", *argv)),
        ):
            cluster.commands("login", directory, *COMMANDS)
            os.environ["PATH"] = f"{directory}:{path}"
            yield HostsDriver(cluster, scratch)
    finally:
        os.environ["PATH"] = path
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def adapter(driver: HostsDriver) -> SlurmBatchSystem:
    return create({"partition": "batch", "reservations_interval_s": 0})


class TestSlurmOnHosts(BatchSystemConformance):
    @pytest.fixture
    def system(self, adapter: SlurmBatchSystem) -> BatchSystem:
        return adapter

    @pytest.fixture
    def cluster(self, driver: HostsDriver) -> ClusterDriver:
        return driver
