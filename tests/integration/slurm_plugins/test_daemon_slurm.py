"""The daemon on a real Slurm, where Slurm is what matters."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerRecord, TrainerState
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.integration.slurm_fixtures import slurm_cluster
from tests.support.waiting import wait_for

__all__ = ["slurm_cluster"]

pytestmark = pytest.mark.slurm


def test_each_worker_of_a_node_gets_one_of_the_gpus_that_slurm_gave(
    slurm_cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    n_gpus = slurm_cluster.config.gpus_per_node
    sidecar = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=slurm_cluster.config.batch_options(),
        policy="poll_interval_s: 0.2\nreserve_nodes_per_type: 0\nfailure_budget: 2\n",
    )
    says = 'print("sees", os.environ["CUDA_VISIBLE_DEVICES"], "as", run.local_rank, flush=True)'
    text = SLOW.replace('print("worker", os.getpid(), flush=True)', says)
    try:
        sidecar.start()
        ids = [
            sidecar.client.submit(
                trainer_spec(
                    tmp_path / f"of{per_node}", text, n_max=1, epochs=1, workers_per_node=per_node
                )
            ).record.trainer_id
            for per_node in (n_gpus, n_gpus + 1)
        ]
        fits = _ended(sidecar, ids[0])
        assert fits.state is TrainerState.FINISHED, fits.reason
        logs = [Path(f.path).read_text() for f in sidecar.client.logs(fits.trainer_id)]
        assert sorted(line for log in logs for line in log.splitlines() if "sees" in line) == [
            f"sees {number} as {number}" for number in range(n_gpus)
        ]
        # No node has one more: none is used for it, and it says so.
        waits = sidecar.client.trainer(ids[1])
        assert waits.record.state is TrainerState.QUEUED
        assert f"(a GPU for each of {n_gpus + 1} workers or none)" in waits.trouble
    finally:
        sidecar.stop()


def _ended(sidecar: DaemonProcess, trainer: str) -> TrainerRecord:
    def ended() -> TrainerRecord | None:
        record = sidecar.client.trainer(trainer).record
        return record if record.state.is_final else None

    return wait_for(ended, what=f"the end of {trainer}")
