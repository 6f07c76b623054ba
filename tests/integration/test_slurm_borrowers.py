"""Two daemons on one real Slurm with the hook: both get nodes, and a drain does not wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import daemon_on, running_cluster
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

N = 4
POLICY = "reserve_nodes_per_type: 0\nmin_gap_s: 30\ngap_margin_s: 5\nhold_idle_s: 1\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmTestCluster]:
    """Four nodes with Slurm's own slow cycle."""
    with running_cluster(n_nodes=N, gpus_per_node=0, has_hook=True) as running:
        yield running


def of_daemon(daemon: DaemonProcess) -> tuple[int, int]:
    """Return how many nodes it holds, and how many pilots of it wait."""
    view = daemon.client.status()
    return view.nodes_held, view.nodes_requested


def looks(daemon: DaemonProcess) -> int:
    polling = daemon.client.status().polling
    assert polling is not None
    return polling.looks


def test_two_that_begin_at_once_share_and_nobody_waits_in_vain(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(daemon_on(cluster, tmp_path / name, POLICY)) for name in "ab"
        ]
        for daemon in daemons:
            daemon.client.drain(2.0)
        trainers = [
            daemon.client.submit(light_spec(tmp_path / f"t{k}", n_max=N)).record.trainer_id
            for k, daemon in enumerate(daemons)
        ]
        for daemon in daemons:
            daemon.client.resume()

        def is_shared() -> bool:
            shares = [of_daemon(daemon) for daemon in daemons]
            held = [n_held for n_held, _ in shares]
            return sum(held) == N and min(held) >= 1 and not any(waits for _, waits in shares)

        wait_for(is_shared, timeout_s=150.0, what="both have nodes, and no pilot waits")
        shares = [of_daemon(daemon) for daemon in daemons]
        before = [looks(daemon) for daemon in daemons]
        wait_for(
            lambda: all(looks(d) >= n + 2 for d, n in zip(daemons, before, strict=True)),
            timeout_s=150.0,
            what="further looks",
        )
        assert [of_daemon(daemon) for daemon in daemons] == shares
        for daemon, trainer in zip(daemons, trainers, strict=True):
            daemon.client.cancel(trainer, now=True)


def test_a_drain_with_pending_pilots_ends_with_the_next_looks(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    """Slurm starts none of the pilots; regular looks are half a minute apart."""
    with daemon_on(cluster, tmp_path, POLICY) as daemon:
        client = daemon.client
        wait_for(lambda: client.status().nodes_idle == N, what="a look")
        done = cluster.command("scontrol", "update", "PartitionName=bf", "State=DOWN")
        assert done.is_ok, done.stderr
        try:
            trainer = client.submit(light_spec(tmp_path / "t", n_max=N)).record.trainer_id
            queue = ("squeue", "-h", "-p", "bf", "-t", "PD", "-o", "%i")
            wait_for(lambda: len(cluster.command(*queue).stdout.split()) == N, what="pilots wait")
            before = looks(daemon)
            client.drain(2.0)
            wait_for(lambda: of_daemon(daemon) == (0, 0), what="nothing is asked for")
            assert looks(daemon) <= before + 2, "the one after the cancel, and one under way"
            polling = client.status().polling
            assert polling is not None
            assert polling.called_looks >= 1
            client.cancel(trainer, now=True)
        finally:
            cluster.command("scontrol", "update", "PartitionName=bf", "State=UP")
