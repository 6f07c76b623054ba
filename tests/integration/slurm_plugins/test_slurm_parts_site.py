"""Parts of nodes on a real Slurm beside what administrators do, with several types of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.views import PartView
from slurm_plugins.testcluster import SlurmTestCluster
from slurm_plugins.testcluster.jobs import Share
from tests.integration.gpu_parts import (
    POLICY,
    Lender,
    lender,
    quiet_gpu_cluster,
    share_of,
)
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

TWO_TYPES = "gpu:a100:2,gpu:1g.10gb:4"
UNTYPED = "gpu:4"


# A host with two types, one of them a part of a GPU, and two without types; cores bound.
cluster = quiet_gpu_cluster(
    node_types=((TWO_TYPES, "mixed"), (UNTYPED, "plain"), (UNTYPED, "plain,big")),
    gpu_cores="own",
)


def test_trainers_and_jobs_with_types_get_those_types(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path) as lent:
        small = lent.trains("small", gres="gpu:1g.10gb:1")
        before = lent.settles({"n1": 4})
        large = lent.trains("large", gres="gpu:a100:1")
        lent.settles({"n1": 6})
        views = {trainer: lent.daemon.client.trainer(trainer) for trainer in (small, large)}
        assert len(views[small].observed_nodes) == 4
        assert len(views[large].observed_nodes) == 2
        types = {part.name: part.gpu_type for part in lent.nodes()["n1"].parts}
        assert {types[name] for name in views[large].observed_nodes} == {"gpu:a100"}
        assert {types[name] for name in views[small].observed_nodes} == {"gpu:1g.10gb"}

        lent.starts(Share(gpus=2, gpu_type="1g.10gb", cpus=2, memory_mb=2000))
        wait_for(lambda: lent.gpus_held() == {"n1": 4}, what="two have gone")
        assert len(lent.daemon.client.trainer(large).observed_nodes) == 2
        assert len(before.keys() & lent.held().keys()) == 2
        lent.starts(Share(gpus=1, gpu_type="a100", cpus=1, memory_mb=1000))
        wait_for(lambda: lent.gpus_held() == {"n1": 3}, what="one has gone")
        wait_for(lambda: lent.daemon.client.harm(None).hand_overs >= 3, what="all are recorded")
        report = lent.daemon.client.harm(None)
        assert (report.hand_overs, report.in_vain) == (3, 0), report


def test_untyped_gpus_of_cores(cluster: SlurmTestCluster, tmp_path: Path) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.starts(share_of(1), "--nodelist=n2")
        lent.trains("a", constraint="plain")
        before = lent.settles({"n2": 3, "n3": 4})
        lent.starts(share_of(3), "--nodelist=n3")
        wait_for(lambda: lent.gpus_held() == {"n2": 3, "n3": 1}, what="three have gone")
        assert lent.held().keys() < before.keys()


def test_a_constraint_leaves_the_gpus_of_other_nodes_alone(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.trains("a", constraint="big")
        lent.settles({"n3": 4})
        lent.starts(share_of(4))  # has room beside them
        lent.looks(1)
        assert lent.gpus_held() == {"n3": 4}


def test_parts_leave_before_a_reservation_begins(cluster: SlurmTestCluster, tmp_path: Path) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.trains("a", constraint="plain")
        lent.settles({"n2": 4, "n3": 4})
        made = ("scontrol", "create", "reservation", "ReservationName=works", "StartTime=now+60")
        what = ("Duration=60", "Nodes=n2", "Users=root", "Flags=IGNORE_JOBS,MAINT")
        done = cluster.command(*made, *what)
        assert done.is_ok, done.stderr
        try:

            def begins() -> bool:
                shown = cluster.command("scontrol", "show", "reservation", "works").stdout
                return "State=ACTIVE" in shown

            wait_for(
                lambda: lent.gpus_held() == {"n3": 4} or begins(),
                what="its parts have gone, or it begins",
            )
            assert lent.gpus_held() == {"n3": 4}
            assert not begins()
            wait_for(begins, what="it begins")
            assert lent.gpus_held() == {"n3": 4}
        finally:
            cluster.command("scontrol", "delete", "ReservationName=works")
        lent.settles({"n2": 4, "n3": 4})


def test_a_drained_node_is_left_and_a_drain_ends_all(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.trains("a", constraint="plain")
        lent.settles({"n2": 4, "n3": 4})
        cluster.set_node("n2", "drain")
        try:
            wait_for(lambda: lent.gpus_held() == {"n3": 4}, what="its parts are given back")
            wait_for(lambda: len(lent.pilots_in_queue()) == 4, what="their pilots are gone")
        finally:
            cluster.set_node("n2", "resume")
        lent.settles({"n2": 4, "n3": 4})
        lent.daemon.client.drain(60.0)
        wait_for(lambda: not lent.pilots_in_queue(), what="no pilot is left")
        lent.daemon.client.resume()
        lent.settles({"n2": 4, "n3": 4})


def test_a_daemon_that_comes_back_has_its_parts(cluster: SlurmTestCluster, tmp_path: Path) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.starts(share_of(1), "--nodelist=n2")
        lent.trains("a", constraint="plain", gpus_per_unit=2)
        before = lent.settles({"n2": 2, "n3": 4})
        lent.daemon.kill()
        lent.daemon.start()
        assert lent.settles({"n2": 2, "n3": 4}) == before
        lent.starts(share_of(2), "--nodelist=n3")
        wait_for(lambda: lent.gpus_held() == {"n2": 2, "n3": 2}, what="one pair has gone")
        assert lent.held().items() < before.items()


def test_parts_are_shown_when_a_daemon_comes_back_that_lends_nodes(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.starts(share_of(1), "--nodelist=n2")
        lent.trains("a", constraint="plain")
        lent.settles({"n2": 3, "n3": 4})
        lent.daemon.kill()
        other = DaemonProcess(
            lent.daemon.state_dir,
            batch_system="slurm",
            batch_options=cluster.config.batch_options(),
            policy=f"{POLICY}lend: nodes\n",
        )
        lent.daemon = other
        other.start()
        wait_for(
            lambda: all(part.use != "requested" for part in parts_shown(lent)),
            what="what has become of the parts is told",
        )
        lent.trains("whole", constraint="big", gpus_per_unit=0, n_max=1)
        lent.starts(share_of(4), "--nodelist=n3")


def parts_shown(lent: Lender) -> list[PartView]:
    """Return the parts of all nodes."""
    return [part for node in lent.nodes().values() for part in node.parts]
