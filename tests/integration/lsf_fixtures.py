"""The stand-in of LSF for a test module, in both dialects, with short delays.

Test modules import ``lsf_cluster`` and ``lsf_system``.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsf_adapters.adapter import LsfBatchSystem, create
from lsf_adapters.testcluster import LsfConfig, LsfTestCluster, Parameters, Profile
from lsf_adapters.testcluster.processes import of_jobs, of_server

# What differs in volclava's words is parsed in tests/unit; all of it is tried in the long tier.
DIALECTS = ("ibm", pytest.param("volclava", marks=pytest.mark.long))
PARAMETERS = Parameters(sequential_signal=True)  # docs/howto/lsf-site.md


class LsfDriver:
    """The stand-in in the words of the conformance tests."""

    def __init__(self, cluster: LsfTestCluster) -> None:
        self._cluster = cluster
        self.directory: Path = cluster.directory / "scratch"
        self.directory.mkdir(exist_ok=True)
        self.gpus_per_node = cluster.config.gpus_per_node
        self.preempts = cluster.config.dialect == "ibm"

    def node_names(self) -> tuple[str, ...]:
        return self._cluster.node_names

    def submit_ordinary(self, *, n_nodes: int, limit_s: float, duration_s: float) -> str:
        return self._cluster.submit(n_nodes=n_nodes, limit_s=limit_s, duration_s=duration_s)

    def job_started_s(self, job_id: str) -> float | None:
        return self._cluster.started_s(job_id)

    def cancel(self, job_id: str) -> None:
        self._cluster.cancel(job_id)

    def stop_controller(self) -> None:
        self._cluster.kill_controller()

    def start_controller(self) -> None:
        self._cluster.start_controller()


@contextlib.contextmanager
def running_lsf(**settings: Any) -> Iterator[LsfTestCluster]:
    """Run a stand-in in a directory of its own; at the end nothing of it is left."""
    directory = Path(tempfile.mkdtemp(prefix="bft-lsf-", dir="/tmp"))
    directory.chmod(0o755)
    cluster = LsfTestCluster(
        LsfConfig(**{"profile": Profile.FAST, **settings, "directory": directory})
    )
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        left = of_server(directory) | of_jobs(cluster.config.conf)
        shutil.rmtree(directory)
        assert not left, f"processes left behind: {sorted(left)}"


def lsf_adapter(cluster: LsfTestCluster, **options: Any) -> LsfBatchSystem:
    """The adapter, pointed at a stand-in."""
    first = {"rarely_s": 0, "command_timeout_s": 2}
    return create({**cluster.config.batch_options(), **first, **options})


@pytest.fixture(scope="module", params=DIALECTS)
def lsf_cluster(request: pytest.FixtureRequest) -> Iterator[LsfTestCluster]:
    """Five idle hosts."""
    with running_lsf(dialect=request.param, n_nodes=5, parameters=PARAMETERS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def lsf_system(lsf_cluster: LsfTestCluster) -> LsfBatchSystem:
    """The adapter, pointed at that cluster."""
    return lsf_adapter(lsf_cluster)
