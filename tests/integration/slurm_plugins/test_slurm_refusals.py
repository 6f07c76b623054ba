"""A partition that is closed, and limits of accounts: said once, in the user's words, on Slurm."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer.cli.main import cli
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.reports import TakenCount
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import daemon_on, fast_cluster_with
from tests.integration.slurm_plugins.test_slurm_accounting import POLICY, spec
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

N_NODES = 4
LONGER_S = 9.0  # than the first three pauses


cluster = fast_cluster_with(n_nodes=N_NODES, gpus_per_node=0, accounting=True, enforces_limits=True)


@pytest.fixture
def sidecar(cluster: SlurmTestCluster, tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon_on(cluster, tmp_path, POLICY) as daemon:
        yield daemon
        for view in daemon.client.trainers():
            if not view.record.state.is_final:
                daemon.client.cancel(view.record.trainer_id, now=True)
        wait_for(lambda: not jobs(cluster), what="an empty queue")


def jobs(cluster: SlurmTestCluster) -> str:
    return cluster.command("squeue", "-h").stdout.strip()


def limit(cluster: SlurmTestCluster, what: str) -> None:
    argv = ("sacctmgr", "--immediate", "modify", "user", getpass.getuser(), "set", what)
    done = cluster.command(*argv)
    assert done.is_ok, done.stderr


def partition(cluster: SlurmTestCluster, state: str) -> None:
    done = cluster.command("scontrol", "update", "PartitionName=bf", f"State={state}")
    assert done.is_ok, done.stderr


def submit(sidecar: DaemonProcess, directory: Path, **changes: str) -> str:
    wanted = replace(spec(directory), **changes)  # type: ignore[arg-type]  # texts
    return sidecar.client.submit(wanted).record.trainer_id


def explained(sidecar: DaemonProcess, trainer: str) -> str:
    return " ".join(sidecar.client.explain(trainer).sentences)


def has(sidecar: DaemonProcess, trainer: str, n_nodes: int) -> None:
    wait_for(
        lambda: len(sidecar.client.trainer(trainer).observed_nodes) == n_nodes,
        what=f"{n_nodes} nodes",
        timeout_s=60,
    )


def warnings(sidecar: DaemonProcess) -> list[str]:
    text = sidecar.log.read_text()
    return [line for line in text.splitlines() if "WARNING" in line and "pilots" in line]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("DRAIN", marks=pytest.mark.long),
        pytest.param("DOWN", marks=pytest.mark.long),
        pytest.param("INACTIVE", marks=pytest.mark.long),
    ],
)
def test_a_closed_partition_is_said_once_and_nothing_is_submitted(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, tmp_path: Path, state: str
) -> None:
    partition(cluster, state)
    try:
        before = sidecar.client.status()
        said = f"Partition bf of the pilots is {state}"
        wait_for(lambda: said in " ".join(sidecar.client.status().failures), what=said)
        trainer = submit(sidecar, tmp_path / "one")
        wait_for(lambda: said in explained(sidecar, trainer), what="explain says it")
        looks = before.polling.looks if before.polling else 0
        wait_for(
            lambda: (p := sidecar.client.status().polling) and p.looks > looks + 6,
            what="some polls",
        )
        polling = sidecar.client.status().polling
        assert polling is not None
        assert {one.kind: one.total for one in polling.requests}.get("submit", 0) == 0
        assert jobs(cluster) == ""
    finally:
        partition(cluster, "UP")
    has(sidecar, trainer, N_NODES)
    closed = [line for line in warnings(sidecar) if "Partition bf" in line]
    assert len(closed) == 1, closed


@pytest.mark.long
def test_a_limit_on_submitted_jobs_is_said_once_and_what_it_allows_is_used(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, tmp_path: Path
) -> None:
    limit(cluster, "MaxSubmitJobs=2")
    try:
        trainer = submit(sidecar, tmp_path / "one")
        has(sidecar, trainer, 2)
        said = "the limit of the account on submitted jobs is reached (AssocMaxSubmitJobLimit)"
        wait_for(lambda: said in explained(sidecar, trainer), what="explain says it")
        assert said in " ".join(sidecar.client.status().failures)
        until_s = time.monotonic() + LONGER_S
        wait_for(lambda: time.monotonic() > until_s, what="further tries")
        assert len(sidecar.client.trainer(trainer).observed_nodes) == 2
        refused = [line for line in warnings(sidecar) if "AssocMaxSubmitJobLimit" in line]
        assert len(refused) == 1, refused
        polling = sidecar.client.status().polling
        assert polling is not None
        tries = {one.kind: one.total for one in polling.requests}["submit"]
        assert N_NODES < tries <= N_NODES + 4  # one for each pause
    finally:
        limit(cluster, "MaxSubmitJobs=-1")
    has(sidecar, trainer, N_NODES)


@pytest.mark.long
def test_pending_pilots_say_why_they_wait(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, tmp_path: Path
) -> None:
    limit(cluster, "MaxJobs=2")
    try:
        trainer = submit(sidecar, tmp_path / "one")
        has(sidecar, trainer, 2)
        reason = "the limit of the account on running jobs is reached (AssocMaxJobsLimit)"

        def queued(said: str) -> list[str]:
            lines = [n.reason for n in sidecar.client.nodes() if n.use == "requested"]
            return [line for line in lines if said in line]

        # Two cycles pass over a pilot within seconds here: it is given up and requested again.
        wait_for(lambda: len(queued(reason)) == 2, what="nodes says it")
        of_limit = f"2 of its pilots wait in the queue: {reason}."
        wait_for(lambda: of_limit in explained(sidecar, trainer), what="explain says it")
        closed = (
            "is queued: its partition is closed until an administrator opens it (PartitionDown)"
        )

        def closing_is_seen() -> bool:
            """Close the partition while two pilots wait; False: they were given up before."""
            partition(cluster, "UP")
            wait_for(lambda: len(queued(reason)) == 2, what="two pilots wait")
            partition(cluster, "DOWN")
            wait_for(lambda: len(queued(closed)) == len(queued("")), what="nodes says that, too")
            return len(queued(closed)) == 2

        wait_for(closing_is_seen, what="the partition is closed while two pilots wait")
        assert len(sidecar.client.trainer(trainer).observed_nodes) == 2  # they go on
    finally:
        partition(cluster, "UP")
        limit(cluster, "MaxJobs=-1")
    has(sidecar, trainer, N_NODES)
    ends_are_explained(cluster, sidecar, trainer)


def ends_are_explained(cluster: SlurmTestCluster, sidecar: DaemonProcess, trainer: str) -> None:
    """A pilot that somebody cancels is neither a preemption nor a hand-over."""
    before = sidecar.client.harm(None)
    pilot = cluster.command("squeue", "-h", "-p", "bf", "-o", "%i").stdout.split()[0]
    assert cluster.command("scancel", pilot).is_ok
    found = wait_for(
        lambda: r if (r := sidecar.client.harm(None)).taken > before.taken else None,
        what="the report",
    )
    assert found.taken_by == (TakenCount(by="cancelled", pilots=1),)
    assert (found.preempted, found.hand_overs) == (before.preempted, before.hand_overs)
    total = sidecar.client.account(by=("user",)).total
    assert (total.pilots, total.pilots_preempted, total.pilots_given_back) == (1, 0, 0)
    has(sidecar, trainer, N_NODES)


@pytest.mark.long
def test_an_account_that_is_not_the_users_concerns_his_trainer_alone(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, tmp_path: Path
) -> None:
    del cluster
    wrong = submit(sidecar, tmp_path / "one", account="nix", checkpoint_dir=str(tmp_path / "c1"))
    wait_for(
        lambda: "account nix may not be used by the daemon's user" in explained(sidecar, wrong),
        what="explain says it",
    )
    right = submit(sidecar, tmp_path / "two", checkpoint_dir=str(tmp_path / "c2"))
    has(sidecar, right, N_NODES)
    done = CliRunner().invoke(
        cli, ["status", wrong, "--json", "--socket", str(sidecar.state_dir / "daemon.sock")]
    )
    assert "Name another one with --account" in json.loads(done.output)["trouble"]
    assert sidecar.client.status().failures == ()
