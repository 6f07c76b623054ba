"""A real Slurm cluster for a test module, with the fast scheduler cycle.

Test modules import ``slurm_cluster`` (and ``slurm_system``); a machine without Slurm
fails them, unless BFTRAINER_NO_SLURM=1 says that this is meant. BFTRAINER_SLURM=PREFIX runs them
on the Slurm installed there instead of the machine's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.cluster import Snapshot
from slurm_plugins.adapter import SlurmBatchSystem, create
from slurm_plugins.testcluster import (
    FAST_CYCLE,
    ClusterConfig,
    SlurmTestCluster,
    accounting,
    processes,
)
from slurm_plugins.testcluster.cluster import PROGRAMS
from slurm_plugins.testcluster.config import PREFIX_VARIABLE
from tests.support.waiting import wait_for

if _prefix := os.environ.get(PREFIX_VARIABLE):  # for the adapter's commands and the daemons
    os.environ["PATH"] = f"{_prefix}/bin:{_prefix}/sbin:{os.environ['PATH']}"


def need_slurm(*, with_accounting: bool = False) -> None:
    """Fail, or skip where that was asked for, when Slurm is not installed."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if with_accounting:
        missing += accounting.missing(os.environ["PATH"])
    if not missing:
        return
    if os.environ.get("BFTRAINER_NO_SLURM") == "1":
        pytest.skip("BFTRAINER_NO_SLURM=1")
    pytest.fail(
        f"Slurm is not installed ({', '.join(missing)} missing): scripts/install_system.sh "
        "slurm, or set BFTRAINER_NO_SLURM=1 to do without these tests."
    )


def whole_look(system: SlurmBatchSystem) -> Snapshot:
    """Look until the controller has answered everything: one that is busy may leave that out."""

    def whole() -> Snapshot | None:
        seen = system.snapshot()
        return seen if seen.is_complete and seen.failures == () else None

    return wait_for(whole, what="a look without a failure")


def enterable_directory() -> Path:
    """A new directory that jobs of other users can reach (pytest's own are closed)."""
    directory = Path(tempfile.mkdtemp(prefix="bft-slurm-", dir="/tmp"))
    directory.chmod(0o755)
    return directory


def remove_cluster(cluster: SlurmTestCluster) -> None:
    """Take it down, insist that nothing of it is left, and remove its directory."""
    cluster.down()
    left = processes.of_cluster(cluster.config.slurm_conf, cluster.config.cluster_name)
    shutil.rmtree(cluster.directory)
    assert not left, f"processes left behind: {sorted(left)}"


@contextlib.contextmanager
def running_cluster(**settings: Any) -> Iterator[SlurmTestCluster]:
    """Run a cluster in a directory of its own; at the end nothing of it is left.

    ``settings`` are those of ``ClusterConfig``.
    """
    need_slurm(with_accounting=settings.get("accounting", False))
    directory = enterable_directory()
    cluster = SlurmTestCluster(ClusterConfig(directory=directory, **settings))
    try:
        cluster.up()
        yield cluster
    finally:
        remove_cluster(cluster)


@contextlib.contextmanager
def daemon_on(
    cluster: SlurmTestCluster, base: Path, policy: str, *, starts: bool = True
) -> Iterator[DaemonProcess]:
    """Run a daemon on a cluster; without ``starts`` the test starts it."""
    daemon = DaemonProcess(
        base / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(),
        policy=policy,
    )
    try:
        if starts:
            daemon.start()
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture(scope="module")
def slurm_cluster() -> Iterator[SlurmTestCluster]:
    """Five idle nodes with four fake GPUs each, bound to processors and without a type."""
    with running_cluster(
        n_nodes=5,
        gpu_cores="all",
        bf_interval_s=2,
        message_timeout_s=3,
        scheduler_parameters=FAST_CYCLE,
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def slurm_system(slurm_cluster: SlurmTestCluster) -> SlurmBatchSystem:
    """The adapter, pointed at that cluster."""
    return create(
        {
            **slurm_cluster.config.batch_options(),
            "partition": "batch",
            "reservations_interval_s": 0,
        }
    )


def cluster_with(*, scope: Literal["function", "module"] = "module", **settings: Any) -> Any:
    """Return a fixture: a running cluster; ``settings`` are those of ``ClusterConfig``."""

    @pytest.fixture(scope=scope)
    def cluster() -> Iterator[SlurmTestCluster]:
        with running_cluster(**settings) as running:
            yield running

    return cluster


def fast_cluster_with(**settings: Any) -> Any:
    """Return the same with the fast scheduler cycle."""
    return cluster_with(bf_interval_s=2, scheduler_parameters=FAST_CYCLE, **settings)


def daemon_under(policy: str, *, starts: bool = True) -> Any:
    """Return a fixture: each test's own daemon on the module's ``cluster`` (``daemon_on``)."""

    @pytest.fixture
    def sidecar(cluster: SlurmTestCluster, tmp_path: Path) -> Iterator[DaemonProcess]:
        with daemon_on(cluster, tmp_path, policy, starts=starts) as daemon:
            yield daemon

    return sidecar


def total_cycles(cluster: SlurmTestCluster) -> int:
    """Return how many cycles both schedulers have had."""
    lines = cluster.command("sdiag").stdout.splitlines()
    return sum(int(line.split()[-1]) for line in lines if "Total cycles" in line)


def set_preempt_mode(cluster: SlurmTestCluster, mode: str) -> None:
    """Whether Slurm itself may end pilots."""
    done = cluster.command("scontrol", "update", "PartitionName=bf", f"PreemptMode={mode}")
    assert done.is_ok, done.stderr
