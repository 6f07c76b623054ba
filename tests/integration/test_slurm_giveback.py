"""Give-back on a real Slurm: jobs start on exactly what is given back, nobody is preempted."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import pytest

from bftrainer.decide.feasible import Answer
from bftrainer.decide.giveback import GiveBack, give_back
from bftrainer.decide.types import Memory, PilotView, Settings
from bftrainer.poll.batch_system import PilotObservation, PilotRequest
from bftrainer.poll.snapshot import JobState, NodeState, Presence, Snapshot
from slurm_plugins.adapter import SlurmBatchSystem
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import slurm_cluster, slurm_system, whole_look
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
        wait_for(lambda: self.running() == set(self.pilots), timeout_s=60, what="all pilots run")

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
        # Jobs are held until their nodes are free: Slurm would preempt within a second.
        jobs = [replace(j, reason="") if j.reason == "JobHeldUser" else j for j in seen.jobs or ()]
        return replace(seen, jobs=tuple(jobs))

    def give_back(self) -> GiveBack:
        seen = self.look()
        views = [
            PilotView(pilot_id=i, node=n, requested_s=seen.taken_at_s, is_held=True)
            for n, i in self.pilots.items()
        ]
        settings = Settings(cycle_s=self.system.cycle_s)
        return give_back(seen, views, Memory(), settings, seen.taken_at_s, by_name)

    def job_nodes(self, job_id: str) -> set[str]:
        """Where a job or the tasks of an array run."""
        return {
            name
            for job in self.look().jobs or ()
            if job.job_id.partition("_")[0] == job_id and job.state is JobState.RUNNING
            for name in job.nodes
        }


def by_name(count: int, candidates: Collection[str], gone: Collection[str]) -> Collection[str]:
    return sorted(candidates)[:count]


@pytest.fixture
def cluster(slurm_cluster: SlurmTestCluster, slurm_system: SlurmBatchSystem) -> Iterator[Cluster]:
    yield Cluster(slurm_cluster, slurm_system)
    ids = slurm_cluster.command("squeue", "-h", "-a", "-o", "%A").stdout.split()
    if ids:
        slurm_cluster.command("scancel", "-f", *ids)

    def all_idle() -> bool:
        seen = slurm_cluster.command("sinfo", "-h", "-o", "%T").stdout.split()
        return seen != [] and set(seen) == {"idle"}

    wait_for(all_idle, timeout_s=60, what="all nodes idle again")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--ntasks=8", "--mem-per-cpu=500"), 2),
        (("--gpus=4",), 2),
        (("--nodes=1-3", "--exclusive"), 3),
        (("--nodes=2", "--exclusive", "--exclude=n1,n5", "--nodelist=n4"), 2),
        (("--nodes=1", "--exclusive", "--array=0-5%2"), 2),
    ],
    ids=["processors", "gpus", "range", "named", "array"],
)
def test_a_job_starts_on_exactly_what_is_given_back(
    cluster: Cluster, options: tuple[str, ...], expected: int
) -> None:
    cluster.hold("n1", "n2", "n3", "n4", "n5")
    job_id = cluster.sbatch("--hold", *options)
    given = cluster.give_back()
    released = {release.node for release in given.releases}
    assert len(released) == expected
    cluster.system.cancel_pilots([release.pilot_id for release in given.releases])
    wait_for(lambda: cluster.running() == set(cluster.pilots) - released, what="they are gone")
    wait_for(lambda: released <= cluster.idle(), what="their nodes are free")
    done = cluster.slurm.command("scontrol", "release", job_id)
    assert done.is_ok, done.stderr
    wait_for(lambda: cluster.job_nodes(job_id) == released, timeout_s=60, what="the job runs")
    assert cluster.running() == set(cluster.pilots) - released, "nobody was preempted"
    assert cluster.give_back().releases == (), "nothing more is wanted"


def test_a_job_that_shares_a_node_needs_none_of_ours(cluster: Cluster) -> None:
    runs = cluster.sbatch("--ntasks=1", "--mem=100", "--nodelist=n1")
    wait_for(lambda: cluster.job_nodes(runs) == {"n1"}, timeout_s=60, what="the first job runs")
    cluster.hold("n2", "n3", "n4", "n5")
    fits = cluster.sbatch("--hold", "--ntasks=2", "--mem=100", "--gres=gpu:1")
    too_large = cluster.sbatch("--hold", "--ntasks=1", "--mem=3950")
    given = cluster.give_back()
    answers = {v.job_id: v.answer for v in given.verdicts}
    assert answers == {fits: Answer.STARTS_ON_FREE, too_large: Answer.NEEDS}
    assert [release.for_job for release in given.releases] == [too_large]
    cluster.slurm.command("scontrol", "release", fits)
    wait_for(lambda: cluster.job_nodes(fits) == {"n1"}, timeout_s=60, what="it runs beside it")
    assert cluster.running() == set(cluster.pilots)


def test_jobs_that_cannot_start_cost_nothing(cluster: Cluster) -> None:
    cluster.hold("n1", "n2", "n3", "n4", "n5")
    blocker = cluster.sbatch("--nodes=1", "--exclusive", "--begin=now+1hour")
    behind = cluster.sbatch("--nodes=1", "--exclusive", f"--dependency=afterok:{blocker}")
    alone = cluster.sbatch("--nodes=2", "--exclusive", "--dependency=singleton")
    given = cluster.give_back()
    assert {v.answer for v in given.verdicts} == {Answer.CANNOT}
    whys = {v.job_id: v.why for v in given.verdicts}
    assert "begin time" in whys[blocker]
    assert f"afterok:{blocker}" in whys[behind]
    assert "singleton" in whys[alone]  # all jobs here have the same name
    assert given.releases == ()

    # What squeue shows of them is asked for once, and never again while they wait.
    def cost() -> int:
        before = cluster.system.requests
        seen = cluster.system.snapshot()
        return cluster.system.requests - before if seen.is_complete else 0

    assert wait_for(cost, what="a complete look") <= 4  # nodes, jobs, cycle, reservations
