"""The sums of ``bftrainer account`` against sacct's of the pilots, on a real slurmdbd."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bftrainer.batch import process
from bftrainer.cli.main import cli
from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_plugins.test_slurm_accounting import N_NODES, cluster, spec
from tests.integration.slurm_plugins.test_slurm_accounting import POLICY as BASE
from tests.support.waiting import wait_for

__all__ = ["cluster"]

pytestmark = pytest.mark.slurm

AGREEMENT = 0.01
RUNS_S = 60.0  # sacct knows seconds: four pilots that end together may differ by four
POLICY = BASE + "watts_per_node_type: {default: 500}\n"


def told(*options: str) -> Any:
    done = CliRunner().invoke(cli, ["account", "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def sacct(cluster: SlurmTestCluster) -> dict[str, float]:
    """Return the seconds of each pilot once all have ended."""
    argv = (
        *("sacct", "--allusers", "--duplicates", "--allocations", "--parsable2", "--noheader"),
        *("--starttime", "now-1hour", "--partition", "bf", "--format", "JobIDRaw,ElapsedRaw,End"),
    )
    env = {**cluster.env, "PATH": os.environ["PATH"]}

    def all_ended() -> list[str]:
        done = process.run(argv, timeout_s=20, env=env)
        assert done.is_ok, done.stderr
        lines = done.stdout.splitlines()
        return [] if any("Unknown" in line for line in lines) else lines

    lines = wait_for(all_ended, what="the ends of all pilots in sacct")
    return {line.split("|")[0]: float(line.split("|")[1]) for line in lines}


def stays(trainer_nodes: DaemonProcess, trainer: str, n_nodes: int) -> None:
    wait_for(
        lambda: len(trainer_nodes.client.trainer(trainer).observed_nodes) == n_nodes,
        what=f"{n_nodes} nodes",
        timeout_s=60,
    )


@pytest.mark.long
def test_node_hours_agree_with_sacct(cluster: SlurmTestCluster, tmp_path: Path) -> None:
    """Nodes given back, preempted and cancelled, and a daemon that is killed."""
    sidecar = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(),
        policy=POLICY,
    )
    try:
        sidecar.start()
        scales = replace(spec(tmp_path / "slow"), account="physics")
        trainer = sidecar.client.submit(scales).record.trainer_id
        stays(sidecar, trainer, N_NODES)
        until_s = time.monotonic() + RUNS_S
        wait_for(lambda: time.monotonic() > until_s, what="pilots of some age", timeout_s=90)
        job = cluster.submit(n_nodes=1, duration_s=5)
        wait_for(lambda: cluster.ended_s(job), what="the job that got a node", timeout_s=90)
        stays(sidecar, trainer, N_NODES)
        sidecar.kill()  # trainers go on, and one pilot ends meanwhile
        pilot = cluster.command("squeue", "-h", "-p", "bf", "-o", "%i").stdout.split()[0]
        assert cluster.command("scancel", pilot).is_ok
        until_s = time.monotonic() + 5.0
        wait_for(lambda: time.monotonic() > until_s, what="some time without a daemon")
        sidecar.start()
        stays(sidecar, trainer, N_NODES)
        until_s = time.monotonic() + RUNS_S
        wait_for(lambda: time.monotonic() > until_s, what="pilots of some age", timeout_s=90)
        sidecar.client.cancel(trainer)
        pilots = sacct(cluster)
        wait_for(
            lambda: (status := sidecar.client.status()).nodes_held + status.nodes_requested == 0,
            what="the daemon knows it",
        )
        by_day = told("--socket", str(tmp_path / "state" / "daemon.sock"), "--by", "user,day")
    finally:
        sidecar.stop()
    by_trainer = told(
        *("--journal", str(tmp_path / "state" / "journal.db"), "--by", "account,trainer"),
    )
    total = by_day["total"]
    assert 3600.0 * total["harvested_h"] == pytest.approx(sum(pilots.values()), rel=AGREEMENT)
    assert total["pilots"] == len(pilots)
    assert total["pilots_given_back"] + total["pilots_preempted"] == 1  # not the cancelled one
    assert total["given_back_h"] == pytest.approx(600 / 3600, abs=RUNS_S * 2 / 3600)
    lost = total["redone_h"] + total["warm_up_h"] + total["idle_h"]
    assert total["lost_h"] == pytest.approx(lost)
    assert 0.0 < lost < 0.5 * total["harvested_h"]
    for key, value in by_trainer["total"].items():  # the journal says the same
        is_number = isinstance(value, float)
        assert value == (pytest.approx(total[key], rel=0.001) if is_number else total[key])
    assert {(line["account"], line["trainer"]) for line in by_trainer["lines"]} == {
        ("physics", trainer)
    }
