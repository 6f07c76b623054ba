"""A daemon on a real Slurm of which it cannot read one thing, by options of its policy file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import set_preempt_mode, slurm_cluster
from tests.support.waiting import wait_for

__all__ = ["slurm_cluster"]

pytestmark = pytest.mark.slurm


@pytest.mark.long
def test_a_source_that_cannot_be_read_stops_claims_and_no_give_back(
    slurm_cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    broken, scontrol = tmp_path / "broken", tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(
        f'#!/bin/sh\ncase "$*" in *reservations) [ -e {broken} ] && exec echo nonsense;; esac\n'
        'exec /usr/bin/scontrol "$@"\n'
    )
    scontrol.chmod(0o755)
    sidecar = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=slurm_cluster.config.batch_options(),
        policy="poll_interval_s: 0.2\nreserve_nodes_per_type: 0\nbatch_options:\n"
        "  reservations_interval_s: 0\n  environment:\n"
        f"    PATH: {scontrol.parent}:{os.environ['PATH']}\n",
    )
    client = sidecar.client
    set_preempt_mode(slurm_cluster, "OFF")  # nobody but us frees a node
    try:
        sidecar.start()
        trainer = client.submit(light_spec(tmp_path / "slow", n_max=4)).record.trainer_id

        def size(trainer: str) -> int:
            return len(client.trainer(trainer).observed_nodes)

        wait_for(lambda: size(trainer) == 4, what="four train")
        broken.touch()
        wait_for(lambda: client.status().observed == "unknown", what="something is not known")
        assert "scontrol" in client.status().failures[0]
        job = slurm_cluster.submit(n_nodes=3, duration_s=1)
        wait_for(lambda: slurm_cluster.ended_s(job), what="the job had its nodes")
        wait_for(lambda: size(trainer) == 2, what="two of them were the trainer's")

        def held() -> set[str]:
            return {n.name for n in client.nodes() if n.pilot_id}

        second = client.submit(light_spec(tmp_path / "second", n_max=1)).record.trainer_id
        wait_for(lambda: len(held()) == 2, what="the pilots that left are gone")
        pilots = held()

        def looks() -> int:
            polling = client.status().polling
            return polling.looks if polling else 0

        before = looks()
        wait_for(lambda: looks() >= before + 20, what="further looks")
        assert held() == pilots, sidecar.log.read_text()[-3000:]
        broken.unlink()
        wait_for(lambda: size(second) == 1, what="the second one trains")
        for one in (trainer, second):
            client.cancel(one, now=True)
    finally:
        set_preempt_mode(slurm_cluster, "CANCEL")
        sidecar.stop()
