"""A command as a trainer on a real Slurm, submitted as users submit it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import trainers.examples
from bftrainer.batch import process
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerState
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import slurm_cluster
from tests.support import hurried
from tests.support.waiting import wait_for

__all__ = ["slurm_cluster"]

pytestmark = pytest.mark.slurm
SGD = Path(trainers.examples.__file__).parent / "command_sgd.py"
POLICY = "poll_interval_s: 0.2\nreserve_nodes_per_type: 0\nidle_confirmations: 1\n"
STEPS, BATCH = 6000, 24


@pytest.mark.long
def test_a_command_gives_its_nodes_to_a_job_resumes_and_loses_no_sample(
    slurm_cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    sidecar = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=slurm_cluster.config.batch_options(),
        policy=POLICY,
    )
    try:
        sidecar.start()
        client = sidecar.client
        submit = [
            *(sys.executable, "-m", "bftrainer.cli.main", "submit", "--parsable"),
            *("--socket", str(sidecar.state_dir / "daemon.sock"), "--runtime", "command"),
            *("--nodes", "1..3", "--checkpoint-interval", "1", "--chdir", str(tmp_path)),
            *("--interpreter", sys.executable, "--", hurried.__file__, str(SGD)),
            *("--steps", str(STEPS), "--batch", str(BATCH), "--pause", "0.045"),
        ]
        done = process.run(submit, timeout_s=60)
        assert done.is_ok, done.stderr
        trainer = done.stdout.strip()
        wait_for(lambda: len(client.trainer(trainer).observed_nodes) == 3, what="3 nodes")
        wait_for(
            lambda: client.trainer(trainer).record.progress.step > 100, what="some checkpoints"
        )
        job = slurm_cluster.command("sbatch", "-N", "4", "-p", "batch", "--wrap", "sleep 1")
        assert job.is_ok, job.stderr
        wait_for(lambda: len(client.trainer(trainer).observed_nodes) < 3, what="it gave")
        (tmp_path / "hurry").touch()
        view = wait_for(
            lambda: (
                v if (v := client.trainer(trainer)).record.state is TrainerState.FINISHED else None
            ),
            what="its end",
        )
        state = json.loads((tmp_path / "bft-hurried" / "latest" / "sgd.json").read_text())
        n_samples = STEPS * BATCH
        assert (state["step"], state["samples"]) == (STEPS, n_samples)
        assert state["index_sum"] == n_samples * (n_samples - 1) // 2
        assert view.record.failures == 0
    finally:
        sidecar.stop()
