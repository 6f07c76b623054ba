"""GPUs lent one by one on a real Slurm: what nodes show, and pilots that have parts of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.model.cluster import Node
from bftrainer.model.parts import NodePart, type_name
from slurm_plugins.adapter import SlurmBatchSystem, create
from slurm_plugins.lending import NO_GPU_ENV
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from slurm_plugins.testcluster.jobs import Share
from slurm_plugins.testcluster.sharing import Sharing
from slurm_plugins.trial import NodeTrial
from tests.integration.slurm_fixtures import running_cluster, total_cycles, whole_look
from tests.support.parted_nodes import lent_by
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

NODE = {
    "n_nodes": 1,
    "cpus_per_node": 8,
    "memory_mb": 8000,
    "bf_interval_s": 2,
    "scheduler_parameters": FAST_CYCLE,
}
ONE_GPU = Share(gpus=1, cpus=2, memory_mb=1000)
AGENT = (
    "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]);"
    "print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.cpu_count(), flush=True);"
    "signal.sigwait([15]); os._exit(0)"
)


def seen(system: SlurmBatchSystem) -> Node:
    [node] = whole_look(system).nodes or ()
    return node


def starts(cluster: SlurmTestCluster, share: Share, *words: str) -> str:
    job = cluster.submit(
        n_nodes=1, duration_s=600.0, share=share, user="nobody", partition="batch", extra_args=words
    )
    wait_for(lambda: cluster.started_s(job), what="an ordinary job runs")
    return job


class Pilots:
    """Pilots that a test starts, and what each says of its GPUs."""

    def __init__(self, system: SlurmBatchSystem, logs: Path) -> None:
        self._system, self._logs, self.jobs = system, logs, list[str]()

    def start(self, node: Node, n_gpus: int = 1, which: int = 0) -> str:
        """Ask for so many GPUs of the node's so manieth type; return the job."""
        lent, number = node.lends[which], len(self.jobs)
        part = NodePart(
            name=f"{node.name}/{number}",
            node=node.name,
            gpu_type=type_name(lent),
            gpus=n_gpus,
            cores=n_gpus * lent.cpus,
            memory_mb=n_gpus * lent.memory_mb,
        )
        request = PilotRequest(
            pilot_id=f"p{number + 1:06d}",
            node=part.name,
            time_limit_s=300.0,
            agent_argv=(sys.executable, "-I", "-c", AGENT),
            log_path=self._logs / f"{number}",
            gpus=n_gpus,
            part=part,
        )
        self.jobs.append(self._system.launch_pilot(request))
        return self.jobs[-1]

    def devices(self) -> list[str]:
        """Wait until all run; return which GPUs each sees, in the order of their requests."""
        wait_for(self.are_running, what="all pilots run")
        logs = [self._logs / f"{number}" for number in range(len(self.jobs))]
        wait_for(lambda: all(log.exists() and log.read_text() for log in logs), what="their words")
        return [log.read_text().split()[0] for log in logs]

    def are_running(self) -> bool:
        found = self._system.pilot_states(self.jobs)
        return all(one.phase == "running" for one in found.values())

    def leave(self) -> None:
        """Cancel all of them, and wait for the ends."""
        self._system.cancel_pilots(self.jobs, force=True)
        wait_for(
            lambda: not any(one.phase for one in self._system.pilot_states(self.jobs).values()),
            what="all pilots are gone",
        )


@pytest.fixture
def logs() -> Iterator[Path]:
    """A folder that jobs of the daemon's own user can write to."""
    from tests.integration.slurm_fixtures import enterable_directory

    directory = enterable_directory()
    yield directory
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


@pytest.mark.parametrize(
    ("gres", "cores", "share", "words", "idle", "used"),
    [
        (
            *("gpu:4", "", ONE_GPU, ()),
            [("", 4, 4, 2, 2000)],
            [("", 4, 3, 2, 2000)],
        ),
        (
            *("gpu:4", "own", ONE_GPU, ()),
            [("", 4, 4, 2, 2000)],
            [("", 4, 3, 2, 2000)],
        ),
        (
            *("gpu:a100:4", "all", Share(gpus=1, cpus=5, memory_mb=2000), ()),
            [("a100", 4, 4, 2, 2000)],
            [("a100", 4, 3, 1, 2000)],
        ),
        (
            *("gpu:a100:1,gpu:1g.10gb:3", "", Share(cpus=2, memory_mb=2000)),
            ("--gres=gpu:1g.10gb:2",),
            [("a100", 1, 1, 2, 2000), ("1g.10gb", 3, 3, 2, 2000)],
            [("a100", 1, 1, 2, 2000), ("1g.10gb", 3, 1, 2, 2000)],
        ),
    ],
)
def test_a_shared_node_lends_what_is_free_of_it(
    gres: str,
    cores: str,
    share: Share,
    words: tuple[str, ...],
    idle: list[tuple[str, int, int, int, int]],
    used: list[tuple[str, int, int, int, int]],
) -> None:
    with running_cluster(**NODE, node_types=((gres, ""),), gpu_cores=cores) as cluster:
        system = create(cluster.config.batch_options())
        node = seen(system)
        assert (lent_by(node), node.is_shared, node.why_whole) == (idle, True, "")
        starts(cluster, share, *words)
        assert lent_by(seen(system)) == used


def test_this_release_does_not_tell_of_shards_in_use_so_no_part_is_lent() -> None:
    with running_cluster(**NODE, node_types=(("gpu:4,shard:16", ""),)) as cluster:
        system = create(cluster.config.batch_options())
        starts(cluster, Share(cpus=1, memory_mb=100), "--gres=shard:2")
        node = seen(system)
        if node.lends:  # from 23.11, or where Slurm counts shards without files
            assert sum(gpus.n_free for gpus in node.lends) <= 3
        else:
            assert "Slurm does not tell how many of its GPUs are in use" in node.why_whole


def test_gpus_of_which_jobs_are_not_told_are_lent_as_a_whole() -> None:
    """The node is shown like one whose jobs are told."""
    with running_cluster(**NODE, gpus_per_node=4, gpu_flags="no_gpu_env") as cluster:
        node = seen(create(cluster.config.batch_options()))
        assert (node.gpus, node.lends, node.why_whole) == (4, (), NO_GPU_ENV)
        job = ("srun", "--partition=batch", "--chdir=/", *ONE_GPU.options)
        told = cluster.command(*job, "sh", "-c", "echo sees ${CUDA_VISIBLE_DEVICES-nothing}")
        assert told.stdout.split() == ["sees", "nothing"]


def test_pilots_share_a_node_with_each_other_and_with_jobs(logs: Path) -> None:
    types = (("gpu:a100:4", ""),)
    with running_cluster(**NODE, node_types=types, gpu_cores="own") as cluster:
        system = create(cluster.config.batch_options())
        starts(cluster, ONE_GPU)
        pilots = Pilots(system, logs)
        pilots.start(seen(system), n_gpus=2)
        assert len(pilots.devices()) == 1
        node = seen(system)
        assert lent_by(node) == [("a100", 4, 1, 2, 2000)]
        pilots.start(node)
        two, one = pilots.devices()
        devices = [*two.split(","), *one.split(",")]
        assert sorted(devices) == ["1", "2", "3"], "the ordinary job has the first"
        assert lent_by(seen(system)) == [("a100", 4, 0, 2, 2000)]
        marked = [job.pilot_id for job in system.snapshot().jobs or () if job.pilot_id]
        assert len(marked) == 2
        pilots.leave()
        wait_for(lambda: seen(system).lends[0].n_free == 3, what="their GPUs are free again")


def test_cores_near_a_gpu_that_are_in_use_hold_no_pilot(logs: Path) -> None:
    """Six of eight cores are in use by a job without GPUs; those of two GPUs, and of a third."""
    types = (("gpu:a100:4", ""),)
    with running_cluster(**NODE, node_types=types, gpu_cores="own") as cluster:
        system = create(cluster.config.batch_options())
        starts(cluster, Share(cpus=6, memory_mb=100))
        node = seen(system)
        assert lent_by(node) == [("a100", 4, 2, 1, 2000)]
        pilots = Pilots(system, logs)
        for _ in range(node.lends[0].n_free):
            pilots.start(node)
        assert len(set(pilots.devices())) == 2
        pilots.leave()


def test_each_type_is_asked_for_by_name(logs: Path) -> None:
    types = (("gpu:a100:1,gpu:1g.10gb:3", ""),)
    with running_cluster(**NODE, node_types=types) as cluster:
        system = create(cluster.config.batch_options())
        node, pilots = seen(system), Pilots(system, logs)
        for which in (1, 0, 1, 1):
            pilots.start(node, which=which)
        assert len(set(pilots.devices())) == 4
        told = cluster.command("scontrol", "-d", "show", "jobs").stdout
        assert told.count("GRES=gpu:1g.10gb:1(IDX:") == 3
        assert told.count("GRES=gpu:a100:1(IDX:") == 1
        pilots.leave()


@pytest.mark.parametrize(("most", "n_lent"), [(4, 4), (3, 3)])
def test_all_that_is_lent_starts_under_a_limit_of_cpus(most: int, n_lent: int, logs: Path) -> None:
    sharing = Sharing(pilot_cpus_per_node=most)
    with running_cluster(**NODE, sharing=sharing) as cluster:
        system = create(cluster.config.batch_options())
        node, pilots = seen(system), Pilots(system, logs)
        assert lent_by(node) == [("", 4, n_lent, 1, 2000)]
        for number in range(n_lent):
            pilots.start(node)
            assert len(pilots.devices()) == number + 1
            node = seen(system)
            assert node.lends[0].n_free == n_lent - number - 1
        pilots.leave()


def test_cores_and_memory_of_the_system_are_not_lent(logs: Path) -> None:
    sharing = Sharing(system_cpus="0,1", memory_per_gpu_mb=1500)
    with running_cluster(**NODE, sharing=sharing) as cluster:
        system = create(cluster.config.batch_options())
        node, pilots = seen(system), Pilots(system, logs)
        assert lent_by(node) == [("", 4, 4, 1, 1500)]
        for _ in range(4):
            pilots.start(node)
        assert len(pilots.devices()) == 4
        pilots.leave()


@pytest.mark.parametrize("word", ["FORCE:2", "YES:2"])
def test_beside_jobs_that_may_share_cpus_slurm_puts_no_pilot(word: str, logs: Path) -> None:
    with running_cluster(**NODE, sharing=Sharing(over_subscribe=word)) as cluster:
        system = create(cluster.config.batch_options())
        node = seen(system)
        assert node.lends == ()
        assert f"Partition batch has OverSubscribe={word}" in node.why_whole
        starts(cluster, ONE_GPU)
        pilot = cluster.submit(
            n_nodes=1, duration_s=600.0, share=ONE_GPU, user=None, partition="bf"
        )
        before = total_cycles(cluster)
        wait_for(lambda: total_cycles(cluster) >= before + 3, what="three more cycles")
        assert cluster.started_s(pilot) is None, "as it is said"
        cluster.cancel(pilot)


def test_an_exclusive_partition_is_not_shared() -> None:
    with running_cluster(**NODE, sharing=Sharing(over_subscribe="EXCLUSIVE")) as cluster:
        node = seen(create(cluster.config.batch_options()))
        assert (lent_by(node), node.is_shared) == ([("", 4, 4, 2, 2000)], False)


def test_a_release_is_tried_with_a_part_where_parts_are_lent() -> None:
    with running_cluster(**NODE) as cluster:
        system = create(cluster.config.batch_options())
        release = system._reader.release or "22.05"
        steps = list(NodeTrial(system, release, "bf").steps())
        assert [step.what for step in steps if not step.is_passed] == []
        assert any("with gpu:1" in step.seen for step in steps)
