"""Every policy decides for a daemon on a real Slurm, with trainers of three runtimes."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from bftrainer.decide.policies.base import policy_names
from bftrainer.elastic.loop.try_record import RECORD as VARIABLE
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.lab.try_records import Records, epochs
from bftrainer.model.trainer import BatchRange, CheckpointContract, TrainerRecord
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import LIGHT, SLOW, trainer_spec
from tests.integration.slurm_fixtures import fast_cluster_with
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]
ROOT = Path(__file__).parents[3]
SGD = ROOT / "trainers" / "examples" / "command_sgd.py"
BATCH = BatchRange(least=12, most=60, per_worker=20, lr_rule="linear")
SAMPLES = 240  # of an epoch
POLICY = """\
poll_interval_s: 0.5
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
policy: {name}
"""


cluster = fast_cluster_with(n_nodes=5, gpus_per_node=0)


class Live:
    """A daemon with a policy, and its trainers."""

    def __init__(self, cluster: SlurmTestCluster, base: Path, name: str) -> None:
        self.base = base
        self.sidecar = DaemonProcess(
            base / "state",
            batch_system="slurm",
            batch_options=cluster.config.batch_options(),
            policy=POLICY.format(name=name),
        )

    def submit(self) -> list[str]:
        noted = self.base / "torch" / "noted"
        noted.mkdir(parents=True)
        told = (("OMP_NUM_THREADS", "1"), (VARIABLE, str(noted)))
        torch = trainer_spec(
            self.base / "torch", SLOW, n_max=2, batch=BATCH, environment=told, name="torch"
        )
        mpi = trainer_spec(
            self.base / "mpi", LIGHT, runtime="mpi", epochs=None, n_max=2, name="mpi",
            batch=dataclasses.replace(BATCH, lr_rule="none"),
        )  # fmt: skip
        command = trainer_spec(
            self.base / "command", "", runtime="command", epochs=None, n_max=1, name="command",
            script=sys.executable, interpreter="", contract=CheckpointContract(grace_s=20.0),
            args=(str(SGD), "--steps", "1000000", "--batch", "8", "--pause", "0.05"),
        )  # fmt: skip
        return [self.sidecar.client.submit(s).record.trainer_id for s in (torch, mpi, command)]

    def record(self, trainer: str) -> TrainerRecord:
        return self.sidecar.client.trainer(trainer).record

    def trains_beyond(self, trainer: str, samples: int) -> None:
        wait_for(
            lambda: self.record(trainer).progress.samples > samples,
            what=f"{self.record(trainer).spec.name} trains",
        )


@pytest.mark.parametrize("name", policy_names())
def test_a_policy_decides_for_real_trainers(
    cluster: SlurmTestCluster, tmp_path: Path, name: str
) -> None:
    live = Live(cluster, tmp_path, name)
    try:
        live.sidecar.start()
        trainers = live.submit()
        for trainer in trainers:
            live.trains_beyond(trainer, 0)
        torch, mpi, _ = trainers
        job = cluster.submit(n_nodes=4, duration_s=5)
        wait_for(lambda: cluster.started_s(job), what="an ordinary job starts")
        before = {t: live.record(t).progress.samples for t in trainers}
        for trainer in trainers:  # also those that had to park
            live.trains_beyond(trainer, before[trainer])
            assert live.record(trainer).failures == 0
            told = live.sidecar.client.explain(trainer)
            assert told.sentences
            assert bool(told.terms) == (name != "milp")
        for trainer in (torch, mpi):
            assert BATCH.least <= live.record(trainer).progress.batch <= BATCH.most
        live.trains_beyond(torch, 2 * SAMPLES)  # so that an epoch is over
        noted = Records(tmp_path / "torch" / "noted")

        def are_used_once() -> bool:
            """Of a worker that goes on, the lines after those of the others may be missing yet."""
            noted.look()
            *whole, _ = epochs(noted.processes)
            return bool(whole) and all(use.is_once for use in whole)

        wait_for(are_used_once, what="the samples of each whole epoch were used once")
        assert live.sidecar.client.status().failures == ()
    finally:
        for view in live.sidecar.client.trainers():
            live.sidecar.client.cancel(view.record.trainer_id, now=True)
        live.sidecar.stop()
        jobs = ("squeue", "-h", "-o", "%i")
        if left := cluster.command(*jobs).stdout.split():
            cluster.command("scancel", "-f", *left)
        wait_for(lambda: not cluster.command(*jobs).stdout.split(), what="no jobs")
