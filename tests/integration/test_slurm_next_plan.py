"""The plan that we foretell, beside the one that a real Slurm makes of the same queue."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bftrainer.decide.next_plan import replanned
from bftrainer.decide.nodesets import NodeSets
from bftrainer.decide.requests import Requests, Site
from bftrainer.decide.waiting import in_order, pending_jobs
from bftrainer.poll.snapshot import Job, JobState, NodeState, Snapshot
from slurm_plugins.adapter import SlurmBatchSystem, create
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.slurm_fixtures import running_cluster, whole_look
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

N_NODES = 12  # so that by name n10 comes before n2
N_WAITING = 14
EXACT_S = 1.5  # Slurm counts whole seconds
Planned = dict[str, tuple[float, tuple[str, ...]]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmTestCluster]:
    with running_cluster(
        n_nodes=N_NODES, gpus_per_node=0, bf_interval_s=2, scheduler_parameters=FAST_CYCLE
    ) as running:
        yield running


@pytest.fixture(scope="module")
def system(cluster: SlurmTestCluster) -> SlurmBatchSystem:
    return create(cluster.config.batch_options())


def _all_planned(system: SlurmBatchSystem) -> Snapshot | None:
    """A look in which all that has not started has a plan, of a cycle that started nobody."""
    seen = whole_look(system)
    is_planned = all(job.start_s is not None and job.planned_nodes for job in pending_jobs(seen))
    started_s = max(j.start_s or 0.0 for j in seen.jobs or () if j.state is JobState.RUNNING)
    began_s = (seen.cycle and seen.cycle.began_s) or 0.0
    # Known in whole seconds; one that began while we looked has made only some of the plans.
    is_over = seen.taken_at_s >= began_s + 1.0
    return seen if is_planned and is_over and began_s > started_s + 1.0 else None


def _of_slurm(seen: Snapshot) -> Planned:
    return {
        job.job_id: (job.start_s, tuple(sorted(job.planned_nodes)))
        for job in pending_jobs(seen)
        if job.start_s is not None
    }


def _of_ours(seen: Snapshot) -> Planned:
    """What we say of the same look without the plans in it, for the cycle that made them.

    Two seconds later a limit may reach into another slot.
    """
    assert seen.cycle is not None
    assert seen.cycle.began_s is not None
    bare = [replace(job, start_s=None, planned_nodes=()) for job in pending_jobs(seen)]
    sets = NodeSets.of(seen.nodes or ())
    idle = (n.name for n in sets.nodes if n.state in (NodeState.IDLE, NodeState.PLANNED))
    usable = sets.named(idle)
    requests = Requests(Site.of(seen, sets, usable, seen.cycle.began_s))
    found = replanned(in_order(bare, seen), seen, requests)
    return {
        job.job_id: (job.start_s, tuple(sorted(job.planned_nodes)))
        for job in found
        if job.start_s is not None
    }


def _limit_s(chance: random.Random) -> float:
    return 60.0 * chance.choice((3, 4, 5, 8, 15, 40))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_job_is_planned_when_and_where_slurm_plans_it(
    cluster: SlurmTestCluster, system: SlurmBatchSystem, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - a queue, not a secret
    jobs = []
    try:
        for n_nodes in (3, 1, 2, 4):
            jobs.append(cluster.submit(n_nodes=n_nodes, duration_s=600.0, limit_s=_limit_s(chance)))
            wait_for(lambda: cluster.started_s(jobs[-1]), what=f"job {jobs[-1]} runs")
        waiting = [cluster.submit(n_nodes=N_NODES, duration_s=600.0, limit_s=600.0)]
        for _ in range(N_WAITING):
            n_nodes = chance.choice((1, 1, 2, 3, 4, 6, 8))
            limit_s = _limit_s(chance)
            waiting.append(cluster.submit(n_nodes=n_nodes, duration_s=600.0, limit_s=limit_s))
        jobs += waiting
        seen = wait_for(lambda: _all_planned(system), what="Slurm has planned all")
        slurms, ours = _of_slurm(seen), _of_ours(seen)
        assert len(slurms) > N_WAITING / 2
        assert {job: nodes for job, (_, nodes) in ours.items()} == {
            job: nodes for job, (_, nodes) in slurms.items()
        }
        for job, (start_s, _) in slurms.items():
            assert ours[job][0] == pytest.approx(start_s, abs=EXACT_S)
    finally:
        for job in jobs:
            cluster.cancel(job)
        wait_for(lambda: _is_empty(whole_look(system)), what="the cluster is empty")


def _is_empty(seen: Snapshot) -> bool:
    def runs(job: Job) -> bool:
        return job.state in (JobState.PENDING, JobState.RUNNING)

    is_idle = all(node.state is NodeState.IDLE for node in seen.nodes or ())
    return is_idle and not any(runs(job) for job in seen.jobs or ())
