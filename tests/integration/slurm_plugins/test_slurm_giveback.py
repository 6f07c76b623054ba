"""Give-back on a real Slurm: jobs start on exactly what is given back, nobody is preempted."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from bftrainer.batch.batch_system import PilotObservation, PilotRequest
from bftrainer.decide.draft import Draft
from bftrainer.model.cluster import JobState, Node, NodeState, Presence, Snapshot
from bftrainer.model.decision import PilotView
from slurm_plugins import releases
from slurm_plugins.adapter import SlurmBatchSystem, create
from slurm_plugins.commands import SINFO, VERSION
from slurm_plugins.parse import FIELD, RECORD
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.slurm_fixtures import (
    running_cluster,
    set_preempt_mode,
    slurm_cluster,
    slurm_system,
    whole_look,
)
from tests.support.snapshots import given_back
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

__all__ = ["slurm_cluster", "slurm_system"]

OBEDIENT = (
    "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [15]);"
    "print('up', flush=True); signal.sigwait([15]); os._exit(0)"
)


class Cluster:
    """A cluster on whose nodes we have pilots."""

    def __init__(self, cluster: SlurmTestCluster, system: SlurmBatchSystem) -> None:
        self.slurm, self.system = cluster, system
        self.pilots: dict[str, str] = {}  # node → job id

    def hold(self, *names: str) -> None:
        for name in names:
            self.pilots[name] = self.system.launch_pilot(
                PilotRequest(
                    pilot_id=f"p-{name}",
                    node=name,
                    time_limit_s=600,
                    agent_argv=(sys.executable, "-I", "-c", OBEDIENT),
                    log_path=self.slurm.directory / f"{name}.log",
                    gpus=self.slurm.config.gpus_per_node,
                )
            )
        wait_for(lambda: self.running() == set(self.pilots), what="all pilots run")

    def running(self) -> set[str]:
        """Nodes whose pilot runs."""

        def known() -> Mapping[str, PilotObservation] | None:
            states = self.system.pilot_states(list(self.pilots.values()))
            is_known = all(s.presence is not Presence.UNKNOWN for s in states.values())
            return states if is_known else None

        states = wait_for(known, what="what the pilots do")
        return {n for n, i in self.pilots.items() if states[i].phase == "running"}

    def idle(self) -> set[str]:
        """Nodes on which a job can start."""
        return {n.name for n in self.look().nodes or () if n.state is NodeState.IDLE}

    def sbatch(self, *options: str) -> str:
        done = self.slurm.command(
            *("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--time=2"),
            *(*options, "--wrap=sleep 100"),
        )
        assert done.is_ok, done.stderr
        return done.stdout.strip()

    def look(self) -> Snapshot:
        seen = whole_look(self.system)
        # Held ones count: Slurm would preempt for others within a second.
        jobs = [
            replace(j, reason="", is_entitled=True) if j.reason == "JobHeldUser" else j
            for j in seen.jobs or ()
        ]
        return replace(seen, jobs=tuple(jobs))

    def give_back(self) -> Draft:
        seen = self.look()
        views = [
            PilotView(pilot_id=i, node=n, requested_s=seen.taken_at_s, is_held=True)
            for n, i in self.pilots.items()
        ]
        return given_back(seen, views, now_s=seen.taken_at_s)

    def job_nodes(self, job_id: str) -> set[str]:
        """Where a job, the tasks of an array or the parts of a job run."""
        return {
            name
            for job in self.look().jobs or ()
            if job.counts_as == job_id and job.state is JobState.RUNNING
            for name in job.nodes
        }


@pytest.fixture
def cluster(slurm_cluster: SlurmTestCluster, slurm_system: SlurmBatchSystem) -> Iterator[Cluster]:
    yield Cluster(slurm_cluster, slurm_system)
    ids = slurm_cluster.command("squeue", "-h", "-a", "-o", "%A").stdout.split()
    if ids:
        slurm_cluster.command("scancel", "-f", *ids)

    def all_idle() -> bool:
        seen = slurm_cluster.command("sinfo", "-h", "-o", "%T").stdout.split()
        return seen != [] and set(seen) == {"idle"}

    wait_for(all_idle, what="all nodes idle again")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(("--ntasks=8", "--mem-per-cpu=500"), 2, marks=pytest.mark.long),
        (("--gpus=8",), 2),
        # Held: else it starts on the first that is free.
        pytest.param(("--hold", "--nodes=1-3", "--exclusive"), 3, marks=pytest.mark.long),
        (("--nodes=2", "--exclusive", "--exclude=n1,n5", "--nodelist=n4"), 2),
        pytest.param(("--nodes=1", "--exclusive", "--array=0-5%2"), 2, marks=pytest.mark.long),
        (("--nodes=1", "--exclusive", ":", "--nodes=3", "--exclusive"), 4),
    ],
    ids=["processors", "gpus", "range", "named", "array", "heterogeneous"],
)
def test_a_job_starts_on_exactly_what_is_given_back(
    cluster: Cluster, options: tuple[str, ...], expected: int
) -> None:
    cluster.hold("n1", "n2", "n3", "n4", "n5")
    set_preempt_mode(cluster.slurm, "OFF")  # nobody but us frees a node
    try:
        job_id = cluster.sbatch(*options)
        given = cluster.give_back()
        released = {release.node for release in given.releases}
        assert len(released) == expected
        cluster.system.cancel_pilots([release.pilot_id for release in given.releases])
        if "--hold" in options:
            wait_for(lambda: cluster.idle() == released, what="they are free")
            assert cluster.slurm.command("scontrol", "release", job_id).is_ok
        wait_for(lambda: cluster.job_nodes(job_id) == released, what="the job runs")
        assert cluster.running() == set(cluster.pilots) - released
        assert cluster.give_back().releases == (), "nothing more is wanted"
    finally:
        set_preempt_mode(cluster.slurm, "CANCEL")


def test_a_job_that_shares_a_node_needs_none_of_ours(cluster: Cluster) -> None:
    runs = cluster.sbatch("--ntasks=1", "--mem=100", "--nodelist=n1")
    wait_for(lambda: cluster.job_nodes(runs) == {"n1"}, what="the first job runs")
    cluster.hold("n2", "n3", "n4", "n5")
    fits = cluster.sbatch("--hold", "--ntasks=2", "--mem=100", "--gres=gpu:1")
    too_large = cluster.sbatch("--hold", "--ntasks=1", "--mem=3950")
    given = cluster.give_back()
    assert given.refused == {}
    assert [release.for_job for release in given.releases] == [too_large]
    cluster.slurm.command("scontrol", "release", fits)
    wait_for(lambda: cluster.job_nodes(fits) == {"n1"}, what="it runs beside it")
    assert cluster.running() == set(cluster.pilots)


def test_gpus_that_are_bound_to_processors_are_seen_in_use(cluster: Cluster) -> None:
    """Such GPUs were read as unused: nothing was given back, and backfill preempted."""
    runs = cluster.sbatch("--ntasks=1", "--mem=100", "--nodelist=n1", "--gres=gpu:2")
    wait_for(lambda: cluster.job_nodes(runs) == {"n1"}, what="the first job runs")
    printed = cluster.slurm.command(*SINFO).stdout.split(RECORD)
    [used] = {row.split(FIELD)[9].strip() for row in printed if row.strip().startswith("n1")}
    kind = (
        "" if releases.release_of(cluster.slurm.command(*VERSION).stdout) >= "26.05" else "(null)"
    )
    assert used == ":".join(filter(None, ("gpu", kind, "2(IDX:0-1)")))
    node = next(node for node in cluster.look().nodes or () if node.name == "n1")
    assert (node.gpus, node.left and node.left.gpus) == (4, 2)
    cluster.hold("n2", "n3", "n4", "n5")
    fits = cluster.sbatch("--hold", "--ntasks=1", "--mem=100", "--gres=gpu:2")
    assert cluster.give_back().releases == ()
    cluster.slurm.cancel(fits)
    too_many = cluster.sbatch("--hold", "--ntasks=1", "--mem=100", "--gres=gpu:3")
    assert [release.for_job for release in cluster.give_back().releases] == [too_many]


@pytest.mark.long
def test_a_gpu_with_a_part_in_use_is_not_left() -> None:
    """Two jobs share a GPU and one ends; to 23.02 sinfo forgets the other."""
    with running_cluster(
        n_nodes=1, shards_per_node=16, bf_interval_s=2, scheduler_parameters=FAST_CYCLE
    ) as slurm:
        cluster = Cluster(slurm, create({**slurm.config.batch_options(), "partition": "batch"}))
        first, second = (cluster.sbatch("--ntasks=1", "--mem=9", "--gres=shard:1") for _ in "12")
        wait_for(lambda: cluster.job_nodes(second) == {"n1"}, what="both run")
        slurm.cancel(first)
        wait_for(lambda: not cluster.job_nodes(first), what="one has ended")

        def partly_used() -> Node | None:
            return next((node for node in cluster.look().nodes or () if node.left), None)

        node = wait_for(partly_used, what="its epilog has ended")
        release = releases.release_of(slurm.command(*VERSION).stdout)
        left = 3 if release >= "23.11" else 0  # not told
        assert (node.gpus, node.left and node.left.gpus) == (4, left)


def test_a_job_that_slurm_requeued_and_holds_costs_nothing(cluster: Cluster) -> None:
    job_id = cluster.sbatch("--nodes=1", "--exclusive", "--nodelist=n1")
    wait_for(lambda: cluster.job_nodes(job_id) == {"n1"}, what="the job runs")
    done = cluster.slurm.command("scontrol", "requeuehold", job_id)
    assert done.is_ok, done.stderr
    wait_for(lambda: "n1" in cluster.idle(), what="its node is free")
    cluster.hold("n1")
    given = cluster.give_back()
    assert given.refused.keys() == {job_id}
    assert "held" in given.refused[job_id]
    assert given.releases == ()


def test_parts_of_a_job_that_do_not_all_fit_cost_nothing(cluster: Cluster) -> None:
    cluster.hold("n1", "n2", "n3", "n4", "n5")
    cluster.sbatch("--nodes=3", "--exclusive", ":", "--nodes=3", "--exclusive")
    given = cluster.give_back()
    assert len(given.refused) == 2
    assert given.releases == ()
    assert cluster.running() == set(cluster.pilots), "nor does Slurm preempt for a part of it"


def test_jobs_that_cannot_start_cost_nothing(cluster: Cluster) -> None:
    cluster.hold("n1", "n2", "n3", "n4", "n5")
    blocker = cluster.sbatch("--nodes=1", "--exclusive", "--begin=now+1hour")
    behind = cluster.sbatch("--nodes=1", "--exclusive", f"--dependency=afterok:{blocker}")
    alone = cluster.sbatch("--nodes=2", "--exclusive", "--dependency=singleton")
    given = cluster.give_back()
    assert "begin time" in given.refused[blocker]
    assert f"afterok:{blocker}" in given.refused[behind]
    assert "singleton" in given.refused[alone]  # all jobs here have the same name
    assert given.releases == ()

    # What squeue shows of them is asked for once, and never again while they wait.
    def cost() -> int:
        before = sum(cluster.system.request_counts().values())
        seen = cluster.system.snapshot()
        return sum(cluster.system.request_counts().values()) - before if seen.is_complete else 0

    assert wait_for(cost, what="a complete look") <= 4  # nodes, jobs, cycle, reservations
