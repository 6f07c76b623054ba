"""A run of the zero-harm benchmark on a real Slurm, small; and Slurm's preemption by QOS."""

from __future__ import annotations

from pathlib import Path

import pytest
from _bench.zero_harm import arm, idle
from _bench.zero_harm.arm import Stage
from _bench.zero_harm.cells import Cell, Settings
from _bench.zero_harm.compare import Draw, compare
from _bench.zero_harm.runs import length_s
from _bench.zero_harm.workload import PlannedJob

from slurm_plugins.testcluster.config import PILOT_QOS
from tests.integration.slurm_fixtures import need_slurm, running_cluster
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

JOBS = (
    PlannedJob(at_s=1.0, n_nodes=2, run_s=3.0, limit_min=1),
    PlannedJob(at_s=2.0, n_nodes=1, run_s=1.0, limit_min=2, kind="srun"),
    PlannedJob(at_s=9.0, n_nodes=1, run_s=2.0, limit_min=1, kind="immediate"),
    PlannedJob(at_s=10.0, n_nodes=4, run_s=1.0, limit_min=1),
)


def test_jobs_start_with_and_without_us_and_nodes_are_held_between(tmp_path: Path) -> None:
    need_slurm()
    said: list[str] = []
    stage = Stage(jobs=JOBS, n_nodes=4, deadline_s=120.0, ticks="", keep=tmp_path, say=said.append)
    settings = Settings(name="small", bf_interval_s=5)
    a = arm.play(stage, settings, "small A", None)
    b = arm.play(stage, settings, "small B", Cell(name="small", settings=settings))
    assert (a.problem, b.problem) == ("", "")
    assert [j.refused for j in (*a.jobs, *b.jobs)] == [""] * 8
    assert [len(j.nodes) for j in b.jobs] == [2, 1, 1, 4]
    assert a.sidecar is None
    assert b.sidecar is not None
    # For a job; other nodes are released because it has used up the reserve of one node.
    # On a slow machine Slurm may be faster than we.
    assert b.sidecar.give_backs + b.sidecar.preemptions >= 1
    # Held and not on a node that an ordinary job has.
    n_idle_s = sum(g.end_s - g.start_s for g in idle.idle_intervals(b))
    assert 0 < length_s(b.sidecar.training) <= length_s(b.sidecar.held) + 1 <= n_idle_s + 1
    assert compare([Draw(controls=[a, a], runs=[b])]).n_jobs == 4
    assert len(said) == 2
    kept = {path.name for path in (tmp_path / "small-B").iterdir()}
    assert {"daemon.log", "slurmctld.log"} < kept


def test_a_job_preempts_a_pilot_by_quality_of_service() -> None:
    with running_cluster(
        n_nodes=2, gpus_per_node=0, bf_interval_s=2, accounting=True, preempt_type="qos"
    ) as cluster:
        pilot = cluster.submit(
            n_nodes=2, duration_s=300, user=None, partition="bf", extra_args=(f"--qos={PILOT_QOS}",)
        )
        wait_for(lambda: cluster.started_s(pilot), what="the pilot starts")
        job = cluster.submit(n_nodes=2, duration_s=1)
        wait_for(lambda: cluster.started_s(job), what="the job starts")
        assert cluster.jobs.noted_nodes(job) == ("n1", "n2")
        assert cluster.ended_s(pilot) is not None
