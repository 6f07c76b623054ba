"""A study on a real Slurm whose ordinary jobs preempt its pilots."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from bftrainer.api.client import Client
from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import daemon_on, slurm_cluster
from tests.integration.study_fixtures import StudyUser, end
from tests.support.waiting import wait_for

__all__ = ["slurm_cluster"]
pytestmark = [pytest.mark.slurm, pytest.mark.long]
SCRIPT = Path(__file__).parents[1].joinpath("study_digits.py").read_text()
# Slurm takes nodes itself, as on a preemptable partition.
POLICY = """\
poll_interval_s: 0.2
reserve_nodes_per_type: 0
failure_budget: 3
give_back: false
min_gap_s: 2
gap_margin_s: 1
agent_timeout_s: 4
"""
PREEMPTIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OnSlurm:
    """A daemon on the cluster."""

    client: Client
    sidecar: DaemonProcess


@pytest.mark.timeout(600)
def test_preempted_trials_go_on_and_the_best_are_kept(
    slurm_cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with daemon_on(slurm_cluster, tmp_path, POLICY) as daemon:
        user = StudyUser(OnSlurm(client=daemon.client, sidecar=daemon), tmp_path / "home", SCRIPT)
        pixels, labels = load_digits(return_X_y=True)
        x = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        torch.save((x, torch.tensor(labels)), user.home / "digits.pt")
        rule = {"name": "sha", "trials": 9, "least": 4, "most": 36, "eta": 3}
        user.write("digits", rule=rule, metric="loss", submit={"checkpoint_interval": 1})
        loop = user.start("digits", "digits.yaml", "train.py")
        try:
            for seen in range(0, PREEMPTIONS, 2):
                wait_for(lambda: daemon.client.status().nodes_held >= 3, what="trials have nodes")
                job = slurm_cluster.submit(n_nodes=4, duration_s=2)
                wait_for(partial(slurm_cluster.ended_s, job), what="an ordinary job has run")
                assert loop.poll() is None, f"it was over after {seen} preemptions"
            assert loop.wait(300) == 0, (user.home / "digits.out").read_text()
        finally:
            end(loop)
        status = daemon.client.status()
        summary = user.summary("digits")
    assert status.preemptions >= PREEMPTIONS
    trials = summary["trials"]
    assert sorted(t["budget"] for t in trials) == [4] * 6 + [12] * 2 + [36]
    assert {t["stage"] for t in trials} == {"complete", "stopped"}
    for rung in (4, 12):
        at = {t["number"]: t["values"][str(rung)] for t in trials if t["budget"] >= rung}
        up = {t["number"] for t in trials if t["budget"] > rung}
        assert up == set(sorted(at, key=lambda n: at[n])[: len(at) // 3])
