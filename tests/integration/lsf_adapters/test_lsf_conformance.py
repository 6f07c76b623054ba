"""The LSF adapter against the stand-in, in both dialects: what every batch system must do."""

from __future__ import annotations

import pytest

from bftrainer.batch.batch_system import BatchSystem
from lsf_adapters.adapter import LsfBatchSystem
from lsf_adapters.testcluster import LsfTestCluster
from tests.conformance.batch_system import BatchSystemConformance, ClusterDriver
from tests.integration.lsf_fixtures import LsfDriver, lsf_cluster, lsf_system

__all__ = ["lsf_cluster", "lsf_system"]


@pytest.mark.long
class TestLsfConformance(BatchSystemConformance):
    @pytest.fixture
    def system(self, lsf_system: LsfBatchSystem) -> BatchSystem:
        return lsf_system

    @pytest.fixture
    def cluster(self, lsf_cluster: LsfTestCluster) -> ClusterDriver:
        return LsfDriver(lsf_cluster)
