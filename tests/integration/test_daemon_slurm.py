"""The daemon on a real Slurm, where Slurm is what matters."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.demo.sidecar import DaemonProcess
from bftrainer.model.trainer import TrainerRecord, TrainerState
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import SLOW, light_spec, trainer_spec
from tests.integration.slurm_fixtures import slurm_cluster
from tests.support.waiting import wait_for

__all__ = ["slurm_cluster"]

pytestmark = pytest.mark.slurm


def test_a_site_that_refuses_pilots_is_told_so(
    slurm_cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    sidecar = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=slurm_cluster.config.batch_options(),
        policy="poll_interval_s: 0.2\nreserve_nodes_per_type: 0\n",
    )
    set_partition(slurm_cluster, "INACTIVE")
    try:
        sidecar.start()
        trainer = sidecar.client.submit(light_spec(tmp_path / "slow")).record.trainer_id
        sentence = wait_for(
            lambda: next(
                (s for s in sidecar.client.explain(trainer).sentences if "refuses our pilots" in s),
                "",
            ),
            what="the refusal is explained",
        )
        assert "partition" in sentence.lower()
        assert any("refuses our pilots" in f for f in sidecar.client.status().failures)
        # It does not hammer the controller: two refused pilots are seconds apart.
        refused = wait_for(
            lambda: r if len(r := _refusal_times(sidecar)) >= 3 else None, what="more tries"
        )
        assert refused[-1] - refused[0] >= 2.0
        assert sidecar.client.trainer(trainer).record.state is TrainerState.QUEUED
        set_partition(slurm_cluster, "UP")
        wait_for(lambda: sidecar.client.trainer(trainer).observed_nodes, what="it runs")
        assert not sidecar.client.status().failures
        sidecar.client.cancel(trainer, now=True)
    finally:
        set_partition(slurm_cluster, "UP")
        sidecar.stop()


def test_each_worker_of_a_node_gets_one_of_the_gpus_that_slurm_gave(
    slurm_cluster: SlurmTestCluster, tmp_path: Path
) -> None:
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
            for per_node in (slurm_cluster.config.gpus_per_node, 3)
        ]
        fits = _ended(sidecar, ids[0])
        assert fits.state is TrainerState.FINISHED, fits.reason
        logs = [Path(f.path).read_text() for f in sidecar.client.logs(fits.trainer_id)]
        assert sorted(line for log in logs for line in log.splitlines() if "sees" in line) == [
            "sees 0 as 0",
            "sees 1 as 1",
        ]
        # No node has three: none is used for it, and it says so.
        waits = sidecar.client.trainer(ids[1])
        assert waits.record.state is TrainerState.QUEUED
        assert "(a GPU for each of 3 workers or none)" in waits.trouble
    finally:
        sidecar.stop()


def _ended(sidecar: DaemonProcess, trainer: str) -> TrainerRecord:
    def ended() -> TrainerRecord | None:
        record = sidecar.client.trainer(trainer).record
        return record if record.state.is_final else None

    return wait_for(ended, what=f"the end of {trainer}")


def set_partition(cluster: SlurmTestCluster, state: str) -> None:
    done = cluster.command("scontrol", "update", "PartitionName=bf", f"State={state}")
    assert done.is_ok, done.stderr


def _refusal_times(sidecar: DaemonProcess) -> list[float]:
    """When rounds of pilots were refused (a round asks for several nodes at once)."""
    return [e.at_s for e in sidecar.entries("pilot-ended") if "refused" in e.pilots[0].reason]
