"""The LSF adapter with ``launch: csm`` on a machine with a launch node: the conformance class."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bftrainer.poll.batch_system import BatchSystem
from lsf_adapters.adapter import LsfBatchSystem
from lsf_adapters.testcluster import LsfTestCluster, Parameters
from tests.conformance.batch_system import BatchSystemConformance, ClusterDriver
from tests.integration.lsf_fixtures import LsfDriver, running_lsf
from tests.support.csm import csm_adapter, install

Machine = tuple[LsfTestCluster, LsfBatchSystem]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """Five compute nodes and a launch node; preempted jobs get INT and TERM before KILL."""
    parameters = Parameters(sequential_signal=True)
    with running_lsf(dialect="ibm", n_nodes=5, parameters=parameters) as cluster:
        yield cluster, csm_adapter(cluster, install(cluster))


@pytest.mark.long
class TestCsmConformance(BatchSystemConformance):
    @pytest.fixture
    def system(self, machine: Machine) -> BatchSystem:
        return machine[1]

    @pytest.fixture
    def cluster(self, machine: Machine) -> ClusterDriver:
        return LsfDriver(machine[0])
