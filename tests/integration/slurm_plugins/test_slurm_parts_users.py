"""Parts of one node for several users and several daemons, and nodes that are lent as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.model.cluster import node_of
from slurm_plugins.doctor import SlurmSettings, findings
from slurm_plugins.testcluster import SlurmTestCluster
from slurm_plugins.testcluster.jobs import Share
from slurm_plugins.testcluster.sharing import Sharing
from tests.integration.daemon_scripts import LIGHT, trainer_spec
from tests.integration.gpu_parts import (
    CPUS_PER_GPU,
    LINEAR,
    MEMORY_PER_GPU_MB,
    MOST,
    SEES,
    gpu_cluster,
    lender,
    share_of,
)
from tests.integration.researchers import Researcher, researcher
from tests.integration.slurm_fixtures import set_preempt_mode
from tests.support.other_users import needs_root
from tests.support.shared_site import POLICY, Person, SharedSite, shared_site
from tests.support.waiting import wait_for

__all__ = ["researcher"]

pytestmark = [pytest.mark.slurm, pytest.mark.long]


# ---- users ----------------------------------------------------------------------------


def submit(person: Person) -> str:
    script = person.writes("train.py", LIGHT)
    told = person.does(
        *("submit", "-J", "mine", "--runtime", "mpi", "--chdir", str(person.home)),
        *("--gpus", "1:2", str(script)),
    )
    trainer: str = re.findall(r"\bt[0-9]+\b", told)[0]
    return trainer


@needs_root
def test_two_users_have_parts_of_one_node() -> None:
    gpus = {
        "gpus_per_node": 4,
        "cpus_per_node": 4 * CPUS_PER_GPU,
        "memory_mb": 4 * MEMORY_PER_GPU_MB,
    }
    with shared_site("bftp", "bftq", n_nodes=1, **gpus) as site:
        set_preempt_mode(site.cluster, "OFF")
        site.start(POLICY + "lend: auto\n")
        trainers = [submit(person) for person in site.people]

        def parts() -> list[str]:
            shown = [part for node in site.client.nodes() for part in node.parts]
            return [part.trainer_id for part in shown if part.use == "held"]

        def each_has(*counts: int) -> bool:
            held = parts()
            return sorted(held.count(trainer) for trainer in trainers) == sorted(counts)

        def owners() -> list[str]:
            pilots = site.cluster.command("squeue", "-h", "-p", "bf", "-o", "%u %N")
            return sorted(pilots.stdout.splitlines())

        wait_for(lambda: all(has_nodes(site, trainer) for trainer in trainers), what="both train")
        for trainer in trainers:
            assert {node_of(name) for name in has_nodes(site, trainer)} == {"n1"}
        if each_has(2, 2):
            assert owners() == sorted(f"{person.name} n1" for person in site.people * 2)
        assert {line.split()[0] for line in owners()} == {person.name for person in site.people}
        before = len(parts())
        job = site.cluster.submit(
            n_nodes=1, duration_s=600.0, share=share_of(5 - before), partition="batch"
        )
        wait_for(lambda: site.cluster.started_s(job), what="an ordinary job gets one of them")
        wait_for(lambda: len(parts()) == before - 1, what="one has gone")
        for trainer in trainers:
            site.client.cancel(trainer, now=True)


def has_nodes(site: SharedSite, trainer: str) -> tuple[str, ...]:
    return site.client.trainer(trainer).observed_nodes


# ---- partitions that give whole nodes to jobs -----------------------------------------


@pytest.mark.parametrize(
    ("sharing", "why"),
    [
        (Sharing(over_subscribe="EXCLUSIVE"), "Ordinary jobs do not share it"),
        (Sharing(over_subscribe="FORCE:2"), "has OverSubscribe=FORCE:2"),
        (Sharing(is_user_exclusive=True), "is ExclusiveUser"),
    ],
    ids=["exclusive", "force", "one-user"],
)
def test_a_node_that_cannot_be_shared_is_lent_as_a_whole(
    sharing: Sharing, why: str, tmp_path: Path
) -> None:
    with gpu_cluster(n_nodes=1, sharing=sharing) as cluster, lender(cluster, tmp_path) as lent:
        lent.trains("whole", gpus_per_unit=0, n_max=1)
        wait_for(lambda: list(lent.held().values()) == [("n1", 0)], what="all of it is held")
        assert why in lent.nodes()["n1"].why_whole
        lent.starts(share_of(1))
        wait_for(lambda: not lent.pilots_in_queue(), what="the pilot has gone")
        lent.looks(1)
        assert not lent.pilots_in_queue(), "nothing is asked for beside the job"
        assert why in lent.nodes()["n1"].why_whole


def test_a_job_that_backfill_starts_gets_a_node_of_one_user_from_the_daemon_alone(
    tmp_path: Path,
) -> None:
    """A job waits for both nodes, so the small one behind it can only be started by backfill."""
    with gpu_cluster(n_nodes=2, sharing=Sharing(is_user_exclusive=True)) as cluster:
        config = cluster.command("scontrol", "show", "config").stdout
        partitions = cluster.command("scontrol", "-o", "show", "partition").stdout
        settings = SlurmSettings(
            config=config,
            partitions=partitions,
            pilot_partition="bf",
            queue_length=0,
            n_nodes=2,
            has_hook=True,
        )
        assert "BFT-2126" in {finding.code for finding in findings(settings)}
        busy = cluster.submit(n_nodes=1, duration_s=300, extra_args=("--nodelist=n2",))
        wait_for(lambda: cluster.started_s(busy), what="n2 is in use")
        pilot = cluster.submit(
            n_nodes=1, duration_s=300, user=None, partition="bf", extra_args=("--nodelist=n1",)
        )
        wait_for(lambda: cluster.started_s(pilot), what="somebody else's pilot runs on n1")
        blocked = cluster.submit(n_nodes=2, duration_s=300)
        small = cluster.submit(n_nodes=1, duration_s=5, limit_s=60, share=share_of(1))

        def planned() -> str:
            shown = cluster.command("squeue", "-h", "-j", small, "-o", "%S %Y").stdout.split()
            return "" if "N/A" in shown or "(null)" in shown else " ".join(shown)

        wait_for(planned, what="backfill has planned the small job")
        assert planned().endswith(" n2"), "not on the pilot's node, which comes free first"
        assert cluster.started_s(small) is None
        for job in (small, pilot):
            cluster.cancel(job)
        with lender(cluster, tmp_path) as lent:
            lent.jobs += [busy, blocked]
            lent.trains("whole", gpus_per_unit=0, n_max=1)
            wait_for(lambda: list(lent.held().values()) == [("n1", 0)], what="n1 is held")
            again = cluster.submit(n_nodes=1, duration_s=5, limit_s=60, share=share_of(1))
            wait_for(lambda: cluster.started_s(again), what="the daemon has given the node back")


def test_nodes_with_shards_are_lent_as_a_whole_where_slurm_forgets_those_in_use(
    tmp_path: Path,
) -> None:
    types = (("gpu:4,shard:16", ""),) * 2
    with gpu_cluster(n_nodes=2, node_types=types) as cluster, lender(cluster, tmp_path) as lent:
        lent.starts(Share(cpus=1, memory_mb=100), "--gres=shard:2", "--nodelist=n1")
        why = wait_for(lambda: lent.nodes()["n1"].why_whole, what="it is told (22.05)")
        assert "Slurm does not tell how many of its GPUs are in use" in why
        lent.trains("whole", gpus_per_unit=0, n_max=2)
        wait_for(lambda: list(lent.held().values()) == [("n2", 0)], what="the idle one is held")
        assert not any(node.parts for node in lent.nodes().values())


# ---- two daemons ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmTestCluster]:
    with gpu_cluster(n_nodes=2, pilot_partition="scavenge") as running:
        yield running


def gpus_of(client: Client) -> tuple[int, int]:
    """Return how many GPUs a daemon holds, and how many of its pilots do not run."""
    parts = [part for node in client.nodes() for part in node.parts]
    held = [part.gpus for part in parts if part.use == "held"]
    return sum(held), len(parts) - len(held)


def test_a_users_own_daemon_and_the_sites_share_a_node(
    cluster: SlurmTestCluster, researcher: Researcher, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path / "site") as lent:
        told = researcher.does("up", "--lend", "auto")
        assert "Your daemon runs" in told
        own = researcher.client
        lent.trains("site")
        spec = trainer_spec(
            tmp_path / "own",
            SEES,
            name="own",
            runtime="mpi",
            epochs=None,
            n_max=MOST,
            curve=LINEAR,
            gpus_per_unit=1,
        )
        mine = own.submit(spec).record.trainer_id

        def waiting() -> list[str]:
            queue = cluster.command("squeue", "-h", "-p", "scavenge", "-t", "PD", "-o", "%j")
            return queue.stdout.split()

        def is_shared() -> bool:
            shares = [gpus_of(client) for client in (lent.daemon.client, own)]
            n_held = [count for count, _ in shares]
            return min(n_held) >= 1 and not any(n for _, n in shares) and not waiting()

        wait_for(is_shared, what="both have GPUs, and no pilot waits", timeout_s=240.0)
        lent.looks(2)
        wait_for(is_shared, what="that is so later, too")
        hosts = [
            {node.name for node in client.nodes() for part in node.parts}
            for client in (lent.daemon.client, own)
        ]
        assert hosts[0] | hosts[1] == {"n1", "n2"}
        assert sum(gpus_of(client)[0] for client in (lent.daemon.client, own)) >= 6
        own.cancel(mine, now=True)
        wait_for(lambda: gpus_of(own) == (0, 0), what="the user's are given back")
