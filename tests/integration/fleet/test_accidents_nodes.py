"""Accidents of nodes, pilots, partitions and queues on a real Slurm.

docs/howto/operate.md ("Accidents") says what an administrator sees of each.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster, processes
from tests.integration.accident_site import AccidentSite
from tests.integration.slurm_fixtures import running_cluster
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmTestCluster]:
    """Three nodes; one that does not answer is down after 5 s."""
    with running_cluster(
        n_nodes=3,
        gpus_per_node=0,
        bf_interval_s=2,
        message_timeout_s=3,
        scheduler_parameters=FAST_CYCLE,
    ) as running:
        conf = running.config.slurm_conf
        text = conf.read_text().replace("SlurmdTimeout=60", "SlurmdTimeout=5")
        text = text.replace("ReturnToService=2", "ReturnToService=1")  # not what was set down
        conf.write_text(f"{text}RebootProgram=/bin/true\n")
        assert running.command("scontrol", "reconfigure").is_ok
        yield running


@pytest.fixture(scope="module")
def shared(
    cluster: SlurmTestCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AccidentSite]:
    """A trainer for up to three nodes, for all tests here."""
    with AccidentSite.open(cluster, tmp_path_factory.mktemp("site")) as site:
        site.trains(3)
        yield site


@pytest.fixture
def site(shared: AccidentSite) -> Iterator[AccidentSite]:
    """It trains on all nodes, before and after each accident."""
    shared.trains_on_all(3)
    shared.logged()
    yield shared
    shared.trains_on_all(3)
    shared.is_unharmed()


def slurmd_pid(cluster: SlurmTestCluster, node: str) -> int | None:
    return processes.from_pid_file(cluster.directory / "run" / f"slurmd.{node}.pid", "slurmd")


def start_slurmd(cluster: SlurmTestCluster, node: str, *options: str) -> None:
    argv = ("slurmd", "-f", str(cluster.config.slurm_conf), "-N", node, *options)
    done = process.run(argv, timeout_s=20, env={"PATH": cluster.config.path, **cluster.env})
    assert done.is_ok, done.stderr


def agents_in(directory: Path) -> list[int]:
    """The processes that were started with the files of a pilot."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{directory}/" in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended
    return found


def node_state(cluster: SlurmTestCluster, node: str) -> str:
    return cluster.command("sinfo", "-h", "-N", "-p", "bf", "-n", node, "-o", "%T").stdout.strip()


@pytest.mark.long
def test_a_drained_node_is_left_and_taken_again(
    cluster: SlurmTestCluster, site: AccidentSite
) -> None:
    """Slurm tells nobody; without us leaving, the node would drain until the time limit."""
    cluster.set_node("n1", "drain")
    site.leaves("n1")
    wait_for(lambda: node_state(cluster, "n1") == "drained", what="it is drained")
    site.trains_on_all(2)
    site.starts_at_once()
    cluster.set_node("n1", "resume")


@pytest.mark.long
def test_a_node_that_is_to_be_rebooted_is_left(
    cluster: SlurmTestCluster, site: AccidentSite
) -> None:
    assert cluster.command("scontrol", "reboot", "nextstate=RESUME", "n2").is_ok
    site.leaves("n2")
    wait_for(lambda: "reboot_issued" in cluster_says(cluster, "n2"), what="it reboots")
    issued_s = time.time()
    pid = slurmd_pid(cluster, "n2")
    assert pid is not None
    processes.end([pid], patience_s=10)
    site.trains_on_all(2)
    # slurmctld compares whole seconds, those of the order and those of the boot.
    wait_for(lambda: time.time() > issued_s + 2.0, what="a later second")
    start_slurmd(cluster, "n2", "-b")


def cluster_says(cluster: SlurmTestCluster, node: str) -> str:
    shown = cluster.command("scontrol", "-o", "show", "node", node).stdout
    return shown.partition("State=")[2].split()[0].lower()


@pytest.mark.long
def test_a_node_that_an_administrator_sets_down(
    cluster: SlurmTestCluster, site: AccidentSite
) -> None:
    cluster.set_node("n1", "down")
    site.leaves("n1")
    site.trains_on_all(2)
    site.starts_at_once()
    site.trains_on_all(2)
    cluster.set_node("n1", "resume")


@pytest.mark.long
def test_without_its_slurmd_a_node_is_used_until_slurm_gives_it_up(
    cluster: SlurmTestCluster, site: AccidentSite
) -> None:
    before, pid = site.workers(), slurmd_pid(cluster, "n3")
    lost = site.pilot_on("n3")
    name = cluster.command("squeue", "-h", "-j", lost, "-o", "%j").stdout[:7]
    assert agents_in(site.sidecar.state_dir / "pilots" / name)
    assert pid is not None
    processes.kill([pid])
    site.trains_on()
    assert site.nodes() == {"n1", "n2", "n3"}
    assert site.workers() == before
    wait_for(lambda: lost not in site.pilots(), what="Slurm gives it up")
    site.leaves("n3")
    site.trains_on_all(2)
    wait_for(lambda: not agents_in(site.sidecar.state_dir / "pilots" / name), what="it leaves")
    start_slurmd(cluster, "n3")


@pytest.mark.long
def test_a_pilot_is_not_requeued_and_one_that_is_does_not_come_back(
    cluster: SlurmTestCluster, site: AccidentSite
) -> None:
    job = site.pilot_on("n2")
    refused = cluster.command("scontrol", "requeue", job)
    assert "disabled" in refused.stderr
    site.trains_on()
    assert site.pilot_on("n2") == job
    assert cluster.command("scontrol", "update", f"JobId={job}", "Requeue=1").is_ok
    assert cluster.command("scontrol", "requeue", job).is_ok
    wait_for(lambda: job not in site.pilots(), what="the daemon cancels it")


@pytest.mark.long
@pytest.mark.parametrize(
    "state",
    ["INACTIVE", *(pytest.param(one, marks=pytest.mark.long) for one in ("DOWN", "DRAIN"))],
)
def test_the_pilots_partition_is_closed(
    cluster: SlurmTestCluster, site: AccidentSite, state: str
) -> None:
    set_partition(cluster, state)
    site.trains_on()
    site.looks(2)
    assert site.nodes() == {"n1", "n2", "n3"}  # what runs goes on
    site.starts_at_once()  # it costs a node, which cannot be taken again
    site.looks(6)
    site.trains_on_all(2)
    assert len(site.logged()) <= 1
    set_partition(cluster, "UP")


def set_partition(cluster: SlurmTestCluster, state: str) -> None:
    assert cluster.command("scontrol", "update", "PartitionName=bf", f"State={state}").is_ok


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [("--full",), pytest.param((f"--user={getpass.getuser()}",), marks=pytest.mark.long)]
)
def test_all_pilots_are_cancelled(
    cluster: SlurmTestCluster, site: AccidentSite, options: tuple[str, ...]
) -> None:
    before = site.pilots()
    assert cluster.command("scancel", "--partition=bf", *options).is_ok
    wait_for(lambda: not before.keys() & site.pilots().keys(), what="they are gone")


@pytest.mark.long
def test_a_reservation_over_our_nodes_finds_them_empty(
    cluster: SlurmTestCluster, site: AccidentSite
) -> None:
    make = ("scontrol", "create", "reservation", "ReservationName=m", "users=root", "duration=60")
    flags = "flags=maint,ignore_jobs"
    assert cluster.command(*make, "starttime=now+5", "nodes=n1,n2", flags).is_ok
    try:
        wait_for(lambda: node_state(cluster, "n1") == "maint", what="the maintenance begins")
        assert "n1" not in site.pilots("RUNNING").values()
        site.trains_on_all(1)
    finally:
        assert cluster.command("scontrol", "delete", "ReservationName=m").is_ok


@pytest.mark.long
def test_a_queue_that_is_full(cluster: SlurmTestCluster, site: AccidentSite) -> None:
    """MaxJobCount is read when slurmctld starts."""
    conf = cluster.config.slurm_conf
    text = conf.read_text()
    # Records of ended jobs count, too.
    records = len(cluster.command("squeue", "-h", "-a", "-t", "all", "-o", "%i").stdout.split())
    conf.write_text(text.replace("MaxJobCount=20000", f"MaxJobCount={records}"))
    cluster.stop_controller()
    cluster.start_controller()
    try:
        site.is_known()
        site.logged()
        cluster.cancel(site.pilot_on("n3"))  # no other one can follow
        said = "the queue of the whole cluster is full"
        wait_for(lambda: any(said in f for f in site.status().failures), what="it is said")
        site.trains_on_all(2)
        (line,) = site.logged()
        assert "BFT-1553" in line
    finally:
        conf.write_text(text)
        cluster.stop_controller()
        cluster.start_controller()
