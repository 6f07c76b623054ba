"""The Slurm adapter against a real Slurm of five nodes: what every batch system must do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import BatchSystem
from slurm_plugins.adapter import SlurmBatchSystem
from slurm_plugins.testcluster import SlurmTestCluster
from tests.conformance.batch_system import BatchSystemConformance, ClusterDriver
from tests.conformance.busy import busy
from tests.integration.slurm_fixtures import slurm_cluster, slurm_system

pytestmark = pytest.mark.slurm

__all__ = ["slurm_cluster", "slurm_system"]


class SlurmDriver:
    """The test cluster in the words of the conformance tests."""

    def __init__(self, cluster: SlurmTestCluster) -> None:
        self._cluster = cluster
        self.directory: Path = cluster.directory / "scratch"
        self.directory.mkdir(exist_ok=True)
        self.gpus_per_node = cluster.config.gpus_per_node
        self.preempts = True

    def node_names(self) -> tuple[str, ...]:
        return self._cluster.config.node_names

    def submit_ordinary(self, *, n_nodes: int, limit_s: float, duration_s: float) -> str:
        return self._cluster.submit(n_nodes=n_nodes, limit_s=limit_s, duration_s=duration_s)

    def job_started_s(self, job_id: str) -> float | None:
        return self._cluster.started_s(job_id)

    def cancel(self, job_id: str) -> None:
        self._cluster.cancel(job_id)

    def stop_controller(self) -> None:
        self._cluster.stop_controller()

    def start_controller(self) -> None:
        self._cluster.start_controller()


@pytest.fixture(scope="module", autouse=True)
def _busy(slurm_cluster: SlurmTestCluster) -> Iterator[None]:
    with busy(slurm_cluster.command):
        yield


class TestSlurmConformance(BatchSystemConformance):
    @pytest.fixture
    def system(self, slurm_system: SlurmBatchSystem) -> BatchSystem:
        return slurm_system

    @pytest.fixture
    def cluster(self, slurm_cluster: SlurmTestCluster) -> ClusterDriver:
        return SlurmDriver(slurm_cluster)
