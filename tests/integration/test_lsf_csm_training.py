"""A trainer whose agents are started by jsrun: it grows, gives nodes back and grows again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.demo.sidecar import DaemonProcess
from lsf_adapters.testcluster import LsfTestCluster
from tests.integration.daemon_scripts import SCALES, SCALING, trainer_spec
from tests.integration.lsf_fixtures import PARAMETERS, running_lsf
from tests.integration.test_lsf_training import POLICY
from tests.support.csm import install
from tests.support.waiting import wait_for


@pytest.fixture
def machine() -> Iterator[LsfTestCluster]:
    """Three compute nodes and a launch node."""
    with running_lsf(dialect="ibm", n_nodes=3, parameters=PARAMETERS) as cluster:
        yield cluster


@pytest.fixture
def sidecar(machine: LsfTestCluster, tmp_path: Path) -> Iterator[DaemonProcess]:
    options = {"bindir": str(install(machine)), "launch": "csm"}
    made = DaemonProcess(
        tmp_path / "state",
        batch_system="lsf",
        batch_options={**machine.config.batch_options(), **options},
        policy=POLICY,
    )
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_trainer_runs_on_compute_nodes_and_gives_them_back(
    machine: LsfTestCluster, sidecar: DaemonProcess, tmp_path: Path
) -> None:
    environment = (("OMP_NUM_THREADS", "1"),)
    spec = trainer_spec(
        tmp_path / "trainer", SCALES, n_max=3, environment=environment, curve=SCALING
    )
    trainer = sidecar.client.submit(spec).record.trainer_id

    def trains_at(size: int) -> None:
        before = sidecar.client.trainer(trainer).record.progress.samples

        def reached() -> bool:
            progress = sidecar.client.trainer(trainer).record.progress
            return progress.size == size and progress.samples > before

        wait_for(reached, what=f"it trains at size {size}")

    trains_at(3)
    job = machine.submit(n_nodes=2, duration_s=3, limit_s=60)
    wait_for(lambda: machine.started_s(job), what="an ordinary job starts")
    trains_at(1)
    trains_at(3)
    status = sidecar.client.status()
    assert status.give_backs + status.preemptions >= 2
    assert sidecar.client.trainer(trainer).record.failures == 0
    sidecar.client.cancel(trainer, now=True)
