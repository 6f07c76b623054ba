"""``bftrainer whatif`` where Slurm runs: what lending GPUs one by one would gain at this moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bftrainer.cli.main import cli
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from slurm_plugins.testcluster.jobs import Share
from tests.integration.slurm_fixtures import running_cluster
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]

T = 1_714_521_600  # 2024-05-01
LOG = (
    "JobID|Start|End|NodeList|Partition\n"
    f"1|{T}|{T + 3600}|n1|batch\n"
    f"2|{T + 5400}|{T + 7200}|n[1-2]|batch\n"
)


def ask(cluster: SlurmTestCluster, log: Path, *words: str) -> str:
    env = {"SLURM_CONF": str(cluster.config.slurm_conf), "BFTRAINER_SOCKET": "/nowhere/d.sock"}
    done = CliRunner().invoke(cli, ["whatif", "--sacct", str(log), *words], env=env)
    assert done.exception is None, done.output
    return done.stdout


def test_gpus_beside_jobs_are_proposed(tmp_path: Path) -> None:
    log = tmp_path / "jobs.txt"
    log.write_text(LOG)
    quick = ("--p-jmax", "2", "--t-fwd", "120", "--hold-down", "0", "--processes", "1")
    with running_cluster(
        n_nodes=2,
        cpus_per_node=8,
        memory_mb=8000,
        scheduler_parameters=FAST_CYCLE,
        node_types=(("gpu:a100:4", ""),) * 2,
    ) as cluster:

        def proposed() -> dict[str, Any]:
            document: dict[str, Any] = json.loads(ask(cluster, log, *quick, "--json"))
            return dict(document["lending_now"])

        idle = proposed()
        assert (idle["nodes"], idle["gpus"], idle["free_gpus"]) == (2, 8, 0)
        job = cluster.submit(
            n_nodes=1,
            duration_s=600.0,
            share=Share(gpus=1, cpus=1, memory_mb=100),
            user="nobody",
            partition="batch",
        )
        wait_for(lambda: cluster.started_s(job), what="it runs")
        wait_for(lambda: proposed()["free_gpus"] == 3, what="three GPUs are free beside the job")
        assert proposed() == {
            **idle,
            "free_gpus": 3,
            "gain_gpu_hours_per_day": 72.0,
            "code": "BFT-2120",
            "remedy": "lend: auto",
        }
        report = " ".join(ask(cluster, log, *quick).split())
        assert "GPUs one by one: lend: auto (BFT-2120)" in report
        assert "Ordinary jobs share 2 nodes (n1 and others) with 8 GPUs" in report
        assert "At this moment 3 of them are free beside jobs: that is 72" in report
