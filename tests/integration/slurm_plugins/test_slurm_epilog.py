"""An Epilog that takes its time, on a real Slurm: what is said of it, and who is in time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer.cli.main import cli
from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.adapter import create
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import running_cluster, whole_look
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

EPILOG_S = 8
MARGIN_S = 2.0
EPILOG = """\
#!/bin/sh
for i in $(seq {tenths}); do [ -e {slow} ] && sleep 0.1; done
echo "$SLURM_JOB_PARTITION $SLURMD_NODENAME $(date +%s.%N)" >> {ended}
"""


@pytest.fixture
def cluster() -> Iterator[SlurmTestCluster]:
    """Two nodes whose Epilog takes 8 s, and writes down when it ends."""
    with running_cluster(n_nodes=2, bf_interval_s=2, scheduler_parameters=FAST_CYCLE) as running:
        slow, script = running.directory / "slow", running.directory / "epilog"
        script.write_text(EPILOG.format(tenths=10 * EPILOG_S, slow=slow, ended=_ended(running)))
        script.chmod(0o755)
        with running.config.slurm_conf.open("a") as conf:
            conf.write(f"Epilog={script}\n")
        assert running.command("scontrol", "reconfigure").is_ok
        slow.touch()
        try:
            yield running
        finally:
            slow.unlink()


def _ended(cluster: SlurmTestCluster) -> Path:
    return cluster.directory / "ended"


def _pilots_epilog_ended_s(cluster: SlurmTestCluster, node: str, after_s: float) -> float | None:
    """When the first Epilog of a pilot ended there after that."""
    lines = map(str.split, _ended(cluster).read_text().splitlines())
    at_s = [float(at_s) for partition, name, at_s in lines if (partition, name) == ("bf", node)]
    return next((s for s in at_s if s > after_s), None)


@pytest.fixture
def sidecar(cluster: SlurmTestCluster, tmp_path: Path) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(),
        policy="poll_interval_s: 0.3\nrequests_per_minute: 2000\nreserve_nodes_per_type: 0\n"
        f"min_gap_s: 0\ngap_margin_s: {MARGIN_S}\nharm_slo_share: 0.5\n",
    )
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()


def _doctor(cluster: SlurmTestCluster, socket: Path) -> dict[str, dict[str, str]]:
    told = [f"--batch-option={k}={v}" for k, v in cluster.config.batch_options().items()]
    argv = ["doctor", *told, "--socket", str(socket), "--json"]
    found = json.loads(CliRunner().invoke(cli, argv).stdout)["findings"]
    return {finding["code"]: finding for finding in found}


@pytest.mark.long
def test_an_epilog_is_measured_and_planned_starts_do_not_wait_for_it(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, tmp_path: Path
) -> None:
    client, socket = sidecar.client, tmp_path / "state" / "daemon.sock"
    found = _doctor(cluster, tmp_path / "no.sock")["BFT-1274"]
    assert found["weight"] == "unknown"
    name, _, program = found["setting"].partition("=")
    assert name in ("Epilog", "Epilog[0]")  # as releases from 24.05 on call the first
    assert program == str(cluster.directory / "epilog")
    trainer = client.submit(light_spec(tmp_path / "slow", n_max=1)).record.trainer_id

    def training() -> str:
        return next(iter(client.trainer(trainer).observed_nodes), "")

    before = wait_for(training, what="it trains")
    first = cluster.submit(n_nodes=1, duration_s=1, extra_args=(f"--nodelist={before}",))
    measured = wait_for(lambda: client.status().measured.end_s, what="an end")
    assert EPILOG_S - 1 <= measured < EPILOG_S + 3, "the Epilog, and what it took to leave"
    wait_for(lambda: cluster.ended_s(first), what="the job that waited for it")
    found = _doctor(cluster, socket)["BFT-1274"]
    assert found["weight"] == "harm"
    assert f"usable {measured:.1f} s after" in found["cost"]
    assert '[ "$SLURM_JOB_PARTITION" = bf ] && exit 0' in found["remedy"]

    # One of the two stays free now. The other one is planned for somebody.
    node = wait_for(training, what="it trains again")
    asked_s = time.time()
    begins = (f"--nodelist={node}", f"--begin=now+{EPILOG_S + 12}")
    planned = cluster.submit(n_nodes=1, duration_s=5, extra_args=begins)
    system = create(cluster.config.batch_options())
    (start_s,) = (j.start_s for j in whole_look(system).jobs or () if j.job_id == planned)
    assert start_s is not None
    assert start_s > time.time() + EPILOG_S + MARGIN_S, "it is planned early enough"
    ended_s = wait_for(lambda: _pilots_epilog_ended_s(cluster, node, asked_s), what="its end")
    assert ended_s < start_s, "the node is ready when the job is due"
    assert ended_s > start_s - 2 * (EPILOG_S + MARGIN_S), "and not long before"
    wait_for(lambda: cluster.started_s(planned), what="the planned job starts")
    client.cancel(trainer, now=True)
