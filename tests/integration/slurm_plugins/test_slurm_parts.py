"""GPUs of partly used nodes on a real Slurm: lent beside ordinary jobs, and given back to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_plugins.testcluster import SlurmTestCluster
from slurm_plugins.testcluster.jobs import Share
from tests.integration.gpu_parts import Lender, lender, quiet_gpu_cluster, share_of
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]


cluster = quiet_gpu_cluster()


def ended_well(lent: Lender, n_parts: int) -> None:
    """Wait for so many hand-overs, all of them released before Slurm had to preempt."""

    def counted() -> bool:
        return lent.daemon.client.harm(None).hand_overs >= n_parts

    wait_for(counted, what=f"{n_parts} hand-overs are recorded")
    report = lent.daemon.client.harm(None)
    counts = report.hand_overs, report.given_back, report.preempted, report.in_vain
    assert counts == (n_parts, n_parts, 0, 0), report


def test_a_job_gets_the_gpus_that_it_lacks_and_no_more(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.starts(share_of(1), "--nodelist=n1")
        lent.starts(share_of(3), "--nodelist=n2")
        trainer = lent.trains("a")
        before = lent.settles({"n1": 3, "n2": 1, "n3": 4})
        assert {gpus for _, gpus in before.values()} == {1}
        seen = wait_for(lambda: s if len(s := lent.sees(trainer)) >= 8 else None, what="all say")
        assert {len(devices.split(",")) for devices in seen} == {1}

        lent.starts(share_of(2), "--nodelist=n1")
        after = lent.settles({"n1": 1, "n2": 1, "n3": 4})
        assert after.keys() < before.keys(), "nobody else had to go"
        ended_well(lent, 2)

        lent.starts(share_of(1))  # anywhere
        wait_for(lambda: sum(lent.gpus_held().values()) == 5, what="one more has gone")
        assert lent.held().keys() < after.keys()
        ended_well(lent, 3)


def test_a_job_that_lacks_cpus_gets_the_parts_that_have_them(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.trains("a")
        before = lent.settles({"n1": 4, "n2": 4, "n3": 4})
        without_gpus = Share(cpus=8, memory_mb=8000)
        lent.starts(without_gpus, "--nodelist=n2")
        wait_for(lambda: lent.gpus_held() == {"n1": 4, "n2": 2, "n3": 4}, what="two have gone")
        assert lent.held().keys() < before.keys()
        ended_well(lent, 2)


def test_a_job_of_whole_nodes_that_cannot_start_takes_nothing(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path) as lent:
        small = [lent.starts(share_of(1), f"--nodelist=n{k}") for k in (1, 2, 3)]
        lent.trains("a")
        before = lent.settles({"n1": 3, "n2": 3, "n3": 3})
        waits = lent.submits(None, n_nodes=2)
        lent.looks(1)
        assert cluster.started_s(waits) is None
        assert lent.held() == before
        assert lent.daemon.client.status().give_backs == 0

        # With two of the nodes free of others it could start, and has all of them.
        cluster.cancel(small[0])
        cluster.cancel(small[1])
        wait_for(lambda: cluster.started_s(waits), what="it starts")
        after = lent.settles({"n3": 3})
        assert after.keys() < before.keys()
        report = lent.daemon.client.harm(None)
        assert (report.preempted, report.in_vain) == (0, 0), report


def test_units_of_two_gpus_single_ones_and_whole_nodes(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path) as lent:
        lent.starts(share_of(1), "--nodelist=n1")
        whole = lent.trains("whole", gpus_per_unit=0, n_max=1)
        wait_for(lambda: list(lent.held().values()) in ([("n2", 0)], [("n3", 0)]), what="a node")
        [(host, _)] = lent.held().values()
        other = {"n2": "n3", "n3": "n2"}[host]
        pairs = lent.trains("pairs", gpus_per_unit=2)
        lent.settles({"n1": 2, host: 0, other: 4})
        parts = [gpus for _, gpus in lent.held().values()]
        assert sorted(parts) == [0, 2, 2, 2]
        seen = wait_for(lambda: s if len(s := lent.sees(pairs)) >= 3 else None, what="all say")
        assert {len(set(devices.split(","))) for devices in seen} == {2}
        lent.trains("one")
        lent.settles({"n1": 3, host: 0, other: 4})
        assert lent.daemon.client.trainer(whole).observed_nodes == (host,)
        pilots = cluster.command("squeue", "-h", "-p", "bf", "-t", "R", "-o", "%N %h").stdout
        words = [line.split()[1] for line in pilots.splitlines() if line.split()[0] == host]
        assert words == ["NO"], "it shares its node with nobody"
