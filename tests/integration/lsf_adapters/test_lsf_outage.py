"""mbatchd is away for a while and a daemon's trainer trains on: nothing is lost or asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from lsf_adapters.testcluster import LsfTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.lsf_fixtures import PARAMETERS, running_lsf
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.3
requests_per_minute: 1000
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
hold_idle_s: 2
batch_options: {command_timeout_s: 0.8, rarely_s: 0}
"""


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("outage_s", [3, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("dialect", "take_away"),
    [
        ("ibm", LsfTestCluster.kill_controller),
        pytest.param("volclava", LsfTestCluster.stop_controller, marks=pytest.mark.long),
    ],
)
def test_a_trainer_trains_on_while_mbatchd_is_away(
    tmp_path: Path, dialect: str, take_away: Callable[[LsfTestCluster], None], outage_s: float
) -> None:
    with running_lsf(dialect=dialect, n_nodes=2, parameters=PARAMETERS) as cluster:
        options = cluster.config.batch_options()
        del options["events_file"]  # so it polls often
        sidecar = DaemonProcess(
            tmp_path / "state",
            batch_system="lsf",
            batch_options=options,
            policy=POLICY,
        )
        client = sidecar.client
        try:
            sidecar.start()
            trainer = client.submit(light_spec(tmp_path / "light", n_max=2)).record.trainer_id

            def samples() -> int:
                return client.trainer(trainer).record.progress.samples

            wait_for(lambda: client.trainer(trainer).record.progress.size == 2, what="two train")
            before, failed = client.status(), sidecar.entries("worker-failed")
            requested = len(sidecar.entries("pilot-requested"))
            take_away(cluster)
            began_s = time.monotonic()
            wait_for(lambda: client.status().observed == "unknown", what="it is noticed")
            trained, looks = samples(), looks_of(sidecar)
            wait_for(
                lambda: time.monotonic() - began_s >= outage_s and looks_of(sidecar) > looks,
                what="a further look",
            )
            assert client.status().observed == "unknown"
            assert set(client.trainer(trainer).observed_nodes) == {"n1", "n2"}
            wait_for(lambda: samples() > trained, what="it trains on")
            cluster.start_controller()
            wait_for(lambda: client.status().observed == "present", what="it is over")
            trained = samples()
            wait_for(lambda: samples() > trained, what="it trains")
            after, record = client.status(), client.trainer(trainer).record
            assert len(sidecar.entries("pilot-requested")) == requested
            assert (after.give_backs, after.preemptions) == (before.give_backs, before.preemptions)
            assert sidecar.entries("worker-failed") == failed
            assert record.progress.size == 2
            client.cancel(trainer, now=True)
        finally:
            sidecar.stop()


def looks_of(sidecar: DaemonProcess) -> int:
    polling = sidecar.client.status().polling
    return polling.looks if polling else 0
