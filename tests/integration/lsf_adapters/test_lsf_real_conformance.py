"""The LSF adapter against a real volclava of five hosts: what every batch system must do.

It has no preemption: pilots of another queue keep their hosts until they leave.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.batch.batch_system import BatchSystem
from lsf_adapters.adapter import LsfBatchSystem, create
from tests.conformance.batch_system import BatchSystemConformance, ClusterDriver
from tests.integration.volclava_fixtures import needs_volclava, volclava
from tests.support.volclava import RealVolclava

pytestmark = needs_volclava

__all__ = ["volclava"]


class VolclavaDriver:
    """The real cluster in the words of the conformance tests."""

    preempts = False  # the lines about preemption in its configuration are ignored

    def __init__(self, cluster: RealVolclava) -> None:
        self._cluster = cluster
        self.directory: Path = cluster.directory / "scratch"
        self.gpus_per_node = cluster.config.gpus_per_node

    def node_names(self) -> tuple[str, ...]:
        return self._cluster.node_names

    def submit_ordinary(self, *, n_nodes: int, limit_s: float, duration_s: float) -> str:
        return self._cluster.submit(n_nodes=n_nodes, limit_s=limit_s, duration_s=duration_s)

    def job_started_s(self, job_id: str) -> float | None:
        return self._cluster.started_s(job_id)

    def cancel(self, job_id: str) -> None:
        self._cluster.cancel(job_id)

    def stop_controller(self) -> None:
        # One that is only stopped carries out later what it was asked by commands killed meanwhile.
        self._cluster.kill_controller()

    def start_controller(self) -> None:
        self._cluster.start_controller()


@pytest.fixture(scope="module")
def volclava_system(volclava: RealVolclava) -> LsfBatchSystem:
    """The adapter; jobs of root are refused, so pilots belong to another account."""
    return create({**volclava.batch_options(), "user": "bft", "rarely_s": 0})


class TestVolclavaConformance(BatchSystemConformance):
    @pytest.fixture
    def system(self, volclava_system: LsfBatchSystem) -> BatchSystem:
        return volclava_system

    @pytest.fixture
    def cluster(self, volclava: RealVolclava) -> ClusterDriver:
        return VolclavaDriver(volclava)
