"""What the hook tells of a job beside what a look shows of it; GPUs are given back for the first.

On a real Slurm whose nodes are shared: who asks for a node for itself, for GPUs by job, task or
node, for memory by node, CPU or GPU.
"""

from __future__ import annotations

import dataclasses
import select
from pathlib import Path

import pytest

from bftrainer.batch.announcer import Announcer
from bftrainer.daemon.decider import DECISION
from bftrainer.model.cluster import STAND_IN, Job
from slurm_plugins.adapter import create
from slurm_plugins.hook.scripts import MAX_LINE_BYTES
from slurm_plugins.testcluster import SlurmTestCluster
from slurm_plugins.testcluster.jobs import Share
from slurm_plugins.testcluster.sharing import Sharing
from tests.integration.gpu_parts import Lender, lender, quiet_gpu_cluster
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

PER_GPU_MB = 2000  # of a job that names no memory (DefMemPerGPU)
REQUESTS = (
    "--exclusive",
    "--exclusive --nodes=2",
    "--oversubscribe",
    "--gpus=2 --nodes=1",
    "--gpus=6 --mem=1000",
    "--gpus-per-task=1 --ntasks=2 --mem-per-cpu=500",
    "--gpus-per-node=2 --nodes=2 --mem=3000",
    "--gpus-per-node=1 --ntasks-per-node=2 --nodes=2 --ntasks=4 --mem-per-cpu=100",
    "--gres=gpu:a100:1 --mem=2000",
    "--gres=gpu:a100:2 --gpus=a100:2",
    "--mem=65535 --nodes=1",
    "--mem=0",
    "--mem-per-cpu=700 --ntasks=4",
    "--ntasks=3 --cpus-per-task=2",
    "--ntasks=1 --cpus-per-task=4 --nodes=1 --mem=100",
    "--ntasks=5 --cpus-per-task=4 --nodes=2 --mem=100",
    "--ntasks=40",
    "--mincpus=3 --nodes=1-2 --mem=100",
    "--gpus=2 --mem-per-gpu=1500",
    "--gpus-per-node=3 --mem-per-gpu=1000 --cpus-per-gpu=2",
    "--gpus=2 --cpus-per-gpu=4 --mem-per-gpu=10",
    "--gpus-per-socket=1 --sockets-per-node=1 --nodes=1",
    "--nodelist=n1,n3 --mem=100",
    "--exclude=n2 --prefer=plain --time-min=1 --contiguous --switches=1 --mem=100",
)
# What is only known when the job is there; of its priority no more than that it waits.
_LATER = ("job_id", "partitions", "priority", "submit_s")


cluster = quiet_gpu_cluster(
    node_types=(("gpu:a100:4", "typed"), ("gpu:4", "plain"), ("gpu:4", "plain")),
    sharing=Sharing(memory_per_gpu_mb=PER_GPU_MB),
)


def held(cluster: SlurmTestCluster, request: str, partition: str) -> str:
    """Submit a job that is held; return its id."""
    words = ("sbatch", "--parsable", "--hold", "--time=10", "--chdir=/tmp", *request.split())
    if partition:
        words += (f"--partition={partition}",)
    done = cluster.command(*words, "--wrap=true")
    assert done.is_ok, (request, done.stderr)
    return done.stdout.strip()


def next_job(announcer: Announcer) -> Job:
    """Wait for the announcement of one job."""
    jobs: list[Job] = []

    def is_told() -> bool:
        select.select([announcer], [], [], 0.2)
        jobs.extend([news.job for news in announcer.read() if news.job is not None])
        return bool(jobs)

    wait_for(is_told, what="a job is announced")
    [job] = jobs
    return job


def differences(announced: Job, shown: Job) -> dict[str, tuple[object, object]]:
    """Return the fields in which they differ."""
    names = [field.name for field in dataclasses.fields(Job) if field.name not in _LATER]
    both = {name: (getattr(announced, name), getattr(shown, name)) for name in names}
    return {name: values for name, values in both.items() if values[0] != values[1]}


@pytest.mark.parametrize("partition", ["batch", ""])
def test_an_announced_job_asks_for_what_a_look_shows_of_it(
    cluster: SlurmTestCluster, partition: str
) -> None:
    system = create(cluster.config.batch_options())
    system.snapshot()
    announcer = system.open_announcer()
    assert announcer is not None
    announced: dict[str, Job] = {}
    requests: dict[str, str] = {}
    try:
        for request in REQUESTS:
            job_id = held(cluster, request, partition)
            requests[job_id], announced[job_id] = request, next_job(announcer)
        shown = {job.job_id: job for job in system.snapshot().jobs or ()}
    finally:
        announcer.close()
        system.close()
        cluster.command("scancel", *requests)
    wrong = {
        request: differences(announced[job_id], shown[job_id])
        for job_id, request in requests.items()
    }
    assert {request: found for request, found in wrong.items() if found} == {}
    jobs = {requests[job_id]: job for job_id, job in announced.items()}
    assert jobs["--ntasks=1 --cpus-per-task=4 --nodes=1 --mem=100"].n_nodes == 1
    assert jobs["--ntasks=5 --cpus-per-task=4 --nodes=2 --mem=100"].n_nodes == 2
    per_gpu = {name: job.memory_per_gpu_mb for name, job in jobs.items() if job.memory_per_gpu_mb}
    assert per_gpu == {
        "--gpus=2 --nodes=1": PER_GPU_MB,
        "--gres=gpu:a100:2 --gpus=a100:2": PER_GPU_MB,
        "--gpus=2 --mem-per-gpu=1500": 1500,
        "--gpus-per-node=3 --mem-per-gpu=1000 --cpus-per-gpu=2": 1000,
        "--gpus=2 --cpus-per-gpu=4 --mem-per-gpu=10": 10,
    }
    assert {jobs[name].can_share for name in per_gpu} == {True}
    assert jobs["--gpus=2 --cpus-per-gpu=4 --mem-per-gpu=10"].cpus == 8


def test_of_a_job_that_says_more_than_a_line_holds_its_size_is_told(
    cluster: SlurmTestCluster,
) -> None:
    system = create(cluster.config.batch_options())
    system.snapshot()
    announcer = system.open_announcer()
    assert announcer is not None
    many = ",".join(["n2"] * 800)
    try:
        job_id = held(cluster, f"--exclude={many} --gpus-per-node=2 --nodes=2", "batch")
        job = next_job(announcer)
        cluster.cancel(job_id)
        told = cluster.config.hook_file.read_text().splitlines()
    finally:
        announcer.close()
        system.close()
    assert (job.n_nodes, job.gpus_per_node, job.cpus, job.excluded_nodes) == (2, 2, 0, ())
    assert max(map(len, told)) <= MAX_LINE_BYTES


def announced_first(
    lent: Lender, share: Share | None, words: str, remaining: dict[str, int]
) -> list[str]:
    """Submit jobs until one is served before a look shows it; return the parts that leave.

    A look that begins at that moment may show a job before its line is read.
    """
    everywhere = {"n2": 4, "n3": 4}
    for _ in range(4):
        lent.settles(everywhere)
        n_before = len(released(lent))
        job = lent.starts(share, "--nodelist=n2", words)
        lent.settles(remaining)
        parts = released(lent)[n_before:]
        settled(lent, n_before + len(parts))
        lent.cluster.cancel(job)
        if all(for_job.startswith(STAND_IN) for _, for_job in parts):
            return [part for part, _ in parts]
    raise AssertionError(f"every job was shown before it was announced; {lent.told()}")


def settled(lent: Lender, n_parts: int) -> None:
    """Wait until as many parts have been handed over, or released in vain."""

    def are_recorded() -> bool:
        report = lent.daemon.client.harm(None)
        return report.hand_overs + report.in_vain >= n_parts

    wait_for(are_recorded, what=f"{n_parts} hand-overs are recorded")


def released(lent: Lender) -> list[tuple[str, str]]:
    """Return which parts were released for which jobs, so far."""
    return [
        (release["node"], release["for_job"])
        for entry in lent.daemon.entries(DECISION)
        for release in entry.payload["plan"]["releases"]
        if release["for_job"]
    ]


def test_an_announced_job_gets_the_parts_that_it_needs_and_no_more(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with lender(cluster, tmp_path) as lent:
        small = Share(cpus=1, memory_mb=2000)
        lent.trains("a", constraint="plain")
        parts = announced_first(lent, None, "--exclusive", {"n3": 4})
        assert len(parts) == 4
        parts = announced_first(lent, small, "--gpus=2", {"n2": 2, "n3": 4})
        assert len(parts) == 2
        report = lent.daemon.client.harm(None)
        assert (report.preempted, report.in_vain) == (0, 0), report
