"""Slurm of today, really: jobs that go before all others, nodes that are deleted and made again."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import pytest

from bftrainer.model.cluster import BEFORE_ALL, Job, JobState, NodeState
from bftrainer.model.errors import UsageError
from bftrainer.model.parts import Lend
from bftrainer.model.site import Wish
from slurm_plugins.adapter import SlurmBatchSystem, create
from slurm_plugins.own_site import SlurmSites
from slurm_plugins.releases import release_of
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster, processes
from slurm_plugins.testcluster.cluster import free_ports
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import (
    daemon_on,
    fast_cluster_with,
    running_cluster,
    whole_look,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

DYNAMIC = "d1"


# There is room for more nodes.
cluster = fast_cluster_with(scope="function", n_nodes=2, gpus_per_node=0)


@pytest.fixture
def system(cluster: SlurmTestCluster) -> SlurmBatchSystem:
    return create(cluster.config.batch_options())


def configure(cluster: SlurmTestCluster, *settings: str) -> None:
    with cluster.config.slurm_conf.open("a") as conf:
        conf.write("\n".join((*settings, "")))
    cluster.stop_controller()
    cluster.start_controller()
    assert cluster.command("scontrol", "reconfigure").is_ok  # slurmd reads its own settings then


def job_of(system: SlurmBatchSystem, job_id: str) -> Job | None:
    return next((job for job in whole_look(system).jobs or () if job.job_id == job_id), None)


def test_a_job_that_is_requeued_at_once_waits_before_all_others(
    cluster: SlurmTestCluster, system: SlurmBatchSystem
) -> None:
    """Its state counted as neither pending nor running before."""
    if release_of(cluster.command("sinfo", "-V").stdout) < "25.11":
        pytest.skip("--requeue=expedite is of 25.11")
    script = cluster.directory / "epilog"
    script.write_text("#!/bin/sh\n[ $SLURMD_NODENAME != n2 ]\n")
    script.chmod(0o755)
    configure(cluster, "SlurmctldParameters=enable_expedited_requeue", f"Epilog={script}")
    has_run = cluster.directory / "scratch" / "has-run"
    has_run.parent.mkdir(exist_ok=True)
    argv = ("--parsable", "--requeue=expedite", "--nodes=2", "--exclusive", "--time=10")
    does = f"[ -e {has_run} ] && exec sleep 300; touch {has_run}; exit 3"
    done = cluster.command("sbatch", *argv, "--chdir=/", "--output=/dev/null", f"--wrap={does}")
    job_id = done.stdout.strip()

    def requeued() -> Job | None:
        job = job_of(system, job_id)
        return job if job and job.priority == BEFORE_ALL else None

    job = wait_for(requeued, what="it is requeued")
    assert (job.state, job.n_nodes, job.nodes) == (JobState.PENDING, 2, ())
    assert job.is_entitled
    assert job.cpus, "its whole request was read"
    assert job.unclear == ""
    script.write_text("#!/bin/sh\n")
    cluster.set_node("n2", "resume")

    def runs() -> Job | None:
        job = job_of(system, job_id)
        return job if job and job.state is JobState.RUNNING else None

    job = wait_for(runs, what="it runs again")
    assert job.nodes == ("n1", "n2")
    assert job.priority < BEFORE_ALL


def test_a_job_that_lacks_nodes_of_one_switch_is_entitled() -> None:
    """Passed before: here 26.05 says Resources; its other words are in test_slurm_entitled.py."""
    with running_cluster(
        n_nodes=4,
        gpus_per_node=0,
        nodes_per_switch=2,
        bf_interval_s=2,
        scheduler_parameters=FAST_CYCLE,
    ) as cluster:
        system = create(cluster.config.batch_options())
        for name in ("n1", "n3"):
            runs = cluster.submit(n_nodes=1, duration_s=600, extra_args=(f"--nodelist={name}",))
            wait_for(partial(cluster.started_s, runs), what="a job on each switch")
        waits = cluster.submit(n_nodes=2, duration_s=1, extra_args=("--switches=1@60",))

        def judged() -> Job | None:
            job = job_of(system, waits)
            return job if job and job.reason not in {"", "None", "Priority"} else None

        job = wait_for(judged, what="Slurm says why it waits")
        assert job.is_entitled, job.reason


def test_a_partition_of_whole_nodes_gives_no_parts(
    cluster: SlurmTestCluster, system: SlurmBatchSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 26.05 OverSubscribe is NO of such a partition."""
    del system
    monkeypatch.setenv("SLURM_CONF", str(cluster.config.slurm_conf))
    done = cluster.command("scontrol", "update", "PartitionName=bf", "OverSubscribe=EXCLUSIVE")
    assert done.is_ok, done.stderr
    with pytest.raises(UsageError) as caught:
        SlurmSites().examine(Wish(partition="bf", lend=Lend.GPUS))
    assert (caught.value.code, "whole nodes" in str(caught.value)) == ("BFT-1288", True)


def test_a_partition_without_nodes_has_no_node_called_na(
    cluster: SlurmTestCluster, system: SlurmBatchSystem
) -> None:
    """Passed before: ``sinfo -N`` leaves such a partition out (22.05, 26.05)."""
    assert cluster.command("scontrol", "create", "PartitionName=empty").is_ok
    assert "n/a" in cluster.command("sinfo", "-h", "-a").stdout
    seen = whole_look(system)
    assert [node.name for node in seen.nodes or ()] == ["n1", "n2"]


def _register(cluster: SlurmTestCluster) -> None:
    """Start the slurmd of a node that the configuration does not name."""
    (port,) = free_ports(1)
    host = socket.gethostname().partition(".")[0]
    conf = f"Port={port} CPUs=4 RealMemory=4000 NodeAddr=127.0.0.1 NodeHostname={host}"
    done = cluster.command("slurmd", "-Z", "-N", DYNAMIC, "--conf", conf)
    if "'Port=' not allowed" in done.stderr:  # all nodes are on one host here
        pytest.skip("slurmd -Z takes no port in this release (22.05)")
    assert done.is_ok, done.stderr


def _unregister(cluster: SlurmTestCluster) -> None:
    """End it, as when a cloud takes the host away, and delete the node."""
    pid = processes.from_pid_file(cluster.directory / "run" / f"slurmd.{DYNAMIC}.pid", "slurmd")
    assert pid is not None
    processes.kill([pid])
    cluster.set_node(DYNAMIC, "down")
    wait_for(
        lambda: cluster.command("scontrol", "delete", f"NodeName={DYNAMIC}").is_ok,
        what="the node is deleted",
    )


@pytest.mark.long
def test_a_node_that_is_deleted_and_made_again_is_a_new_one(
    cluster: SlurmTestCluster, system: SlurmBatchSystem, tmp_path: Path
) -> None:
    """Passed before: claims are of pilots, and a pilot ends with its node."""
    configure(cluster, "MaxNodeCount=8")
    _register(cluster)
    policy = "poll_interval_s: 0.3\nreserve_nodes_per_type: 0\nmin_gap_s: 0\ngap_margin_s: 0\n"
    with daemon_on(cluster, tmp_path, policy) as daemon:
        trainer = daemon.client.submit(light_spec(tmp_path / "log")).record.trainer_id

        def pilot_there() -> str:
            jobs = whole_look(system).jobs or ()
            runs = [j for j in jobs if j.nodes == (DYNAMIC,) and j.state is JobState.RUNNING]
            return runs[0].pilot_id or "" if runs else ""

        first = wait_for(pilot_there, what="a pilot on the dynamic node")
        _unregister(cluster)
        wait_for(
            lambda: DYNAMIC not in {n.name for n in whole_look(system).nodes or ()},
            what="the node is gone",
        )
        wait_for(
            lambda: DYNAMIC not in daemon.client.trainer(trainer).observed_nodes,
            what="the trainer has lost it",
        )
        _register(cluster)
        second = wait_for(pilot_there, what="a pilot on the new node")
        assert second != first
        wait_for(
            lambda: DYNAMIC in daemon.client.trainer(trainer).observed_nodes, what="it trains there"
        )
        states = {n.name: n.state for n in whole_look(system).nodes or ()}
        assert states[DYNAMIC] is NodeState.ALLOCATED
