"""Shared nodes with GPUs on a real Slurm: what each setting of the test cluster makes Slurm do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from bftrainer.model.errors import ExitCode
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from slurm_plugins.testcluster.jobs import Share
from slurm_plugins.testcluster.main import main
from slurm_plugins.testcluster.sharing import Sharing
from slurm_plugins.testcluster.workload import WorkloadItem, WorkloadRun
from tests.integration.slurm_fixtures import running_cluster, total_cycles
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

NODE = {
    "n_nodes": 1,
    "cpus_per_node": 8,
    "memory_mb": 8000,
    "bf_interval_s": 2,
    "scheduler_parameters": FAST_CYCLE,
}
ONE_GPU = Share(gpus=1, cpus=1, memory_mb=100)


def submit(cluster: SlurmTestCluster, share: Share, *words: str, user: str = "nobody") -> str:
    return cluster.submit(
        n_nodes=1, duration_s=600.0, share=share, user=user, partition="batch", extra_args=words
    )


def pilot(cluster: SlurmTestCluster, share: Share) -> str:
    return cluster.submit(n_nodes=1, duration_s=600.0, share=share, user=None, partition="bf")


def states(cluster: SlurmTestCluster, jobs: Sequence[str]) -> list[str]:
    listed = cluster.command("squeue", "-h", "-a", "-o", "%i %t %r")
    by_job = {line.split()[0]: line.split()[1] for line in listed.stdout.splitlines()}
    return [by_job.get(job, "") for job in jobs]


def settled(cluster: SlurmTestCluster, jobs: Sequence[str], wanted: Sequence[str]) -> None:
    """Wait for the states, and see that two further cycles leave them as they are."""
    wait_for(lambda: states(cluster, jobs) == list(wanted), what=f"{wanted}")
    seen = total_cycles(cluster)
    wait_for(lambda: total_cycles(cluster) >= seen + 2, what="two more cycles")
    assert states(cluster, jobs) == list(wanted)


def in_use(cluster: SlurmTestCluster) -> str:
    listed = cluster.command("sinfo", "-h", "-N", "-p", "batch", "-O", "GresUsed:200")
    return listed.stdout.strip()


@pytest.mark.parametrize(
    ("gres", "cores", "used"),
    [
        ("gpu:4", "", "gpu:1"),
        ("gpu:4", "own", "gpu:(null):1(IDX:0)"),
        ("gpu:a100:4", "", "gpu:a100:1(IDX:0)"),
        ("gpu:a100:4", "all", "gpu:a100:1(IDX:0)"),
        ("gpu:a100:1,gpu:1g.10gb:2", "", "gpu:a100:1(IDX:0),gpu:1g.10gb:0(IDX:N/A)"),
    ],
)
@pytest.mark.long
def test_gpus_that_are_files_are_counted_as_real_ones(gres: str, cores: str, used: str) -> None:
    with running_cluster(**NODE, node_types=((gres, ""),), gpu_cores=cores) as cluster:
        job = submit(cluster, ONE_GPU)
        wait_for(lambda: cluster.started_s(job), what="it runs")
        assert in_use(cluster) == used


@pytest.mark.parametrize(
    ("word", "expected"),
    [("NO", ["R", "R", "R"]), ("EXCLUSIVE", ["R", "PD", "PD"]), ("FORCE:2", ["R", "R", "PD"])],
)
@pytest.mark.long
def test_over_subscribe_decides_whether_others_come_to_a_node(
    word: str, expected: list[str]
) -> None:
    with running_cluster(**NODE, sharing=Sharing(over_subscribe=word)) as cluster:
        first = submit(cluster, ONE_GPU)
        wait_for(lambda: cluster.started_s(first), what="the first runs")
        settled(cluster, [first, submit(cluster, ONE_GPU), pilot(cluster, ONE_GPU)], expected)


@pytest.mark.long
def test_limits_of_shared_nodes_hold() -> None:
    sharing = Sharing(
        is_user_exclusive=True, pilot_cpus_per_node=2, memory_per_gpu_mb=1000, system_cpus="0,1"
    )
    with running_cluster(**NODE, sharing=sharing) as cluster:
        no_memory = Share(gpus=2, cpus=1)
        jobs = [submit(cluster, no_memory), submit(cluster, ONE_GPU)]
        settled(cluster, jobs, ["R", "R"])
        listed = cluster.command("sinfo", "-h", "-N", "-p", "batch", "-O", "AllocMem")
        assert int(listed.stdout) == 2000 + 100
        stranger = submit(cluster, ONE_GPU, user="games")
        settled(cluster, [stranger], ["PD"])
        for job in (*jobs, stranger):
            cluster.cancel(job)
        small, large = Share(cpus=2, memory_mb=100), Share(cpus=1, memory_mb=100)
        pilots = [pilot(cluster, small), pilot(cluster, large)]
        settled(cluster, pilots, ["R", "PD"])
        for job in pilots:
            cluster.cancel(job)
        refused = cluster.command("sbatch", "-p", "batch", "-n", "7", "--wrap=true")
        assert "node configuration is not available" in refused.stderr  # two of eight are kept


@pytest.mark.long
def test_jobs_with_gpus_arrays_and_predecessors_are_recorded() -> None:
    items = [
        WorkloadItem(at_s=0.0, n_nodes=1, duration_s=1.0, gpus=2, cpus=2, memory_mb=500),
        WorkloadItem(at_s=0.1, n_nodes=1, duration_s=1.0, gpus=1, cpus=1, n_tasks=3),
        WorkloadItem(at_s=0.2, n_nodes=1, duration_s=1.0, gpus=1, cpus=1, after=0),
        WorkloadItem(at_s=0.3, n_nodes=1, duration_s=1.0, gpus=9, cpus=1),
        WorkloadItem(at_s=0.4, n_nodes=1, duration_s=1.0, after=3),
    ]
    with running_cluster(**NODE) as cluster, WorkloadRun(cluster, items) as run:
        assert run.wait(90)
    records = run.records()
    assert [(r.number, r.task) for r in records] == [
        (0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (3, 0), (4, 0),
    ]  # fmt: skip
    for record in records[:5]:
        assert record.nodes == ("n1",)
        assert record.started_s is not None
        assert record.ended_s is not None
        assert record.ended_s - record.started_s >= 1.0
    first, waits = records[0], records[4]
    assert first.ended_s is not None
    assert waits.started_s is not None
    assert waits.started_s > first.ended_s
    assert len({record.job_id for record in records[:5]}) == 5
    assert "not accept" in records[5].error
    assert records[6].error == "The job that it waits for was refused."


def test_the_command_line_names_what_cannot_be_shared() -> None:
    words = ("up", "-d", "/tmp/bft-shared-none", "--gres", "gpu:a b:2")
    done = CliRunner().invoke(main, words)
    assert done.exit_code == ExitCode.USAGE
    assert done.stderr.startswith("BFT-1243: The generic resource 'gpu:a b:2'")
