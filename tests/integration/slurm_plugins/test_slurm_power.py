"""Nodes that Slurm powers down, and nodes that a job prefers, on a real Slurm of four nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.cluster import NodeState
from slurm_plugins.adapter import create
from slurm_plugins.testcluster import SlurmTestCluster
from slurm_plugins.testcluster.power import booted
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import (
    daemon_under,
    fast_cluster_with,
    whole_look,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

FAST, SLOW = {"n1", "n2"}, {"n3", "n4"}
POLICY = "poll_interval_s: 0.2\nreserve_nodes_per_type: 0\nrequests_per_minute: 1000\n"


cluster = fast_cluster_with(
    n_nodes=4,
    node_types=(("", "fast"), ("", "fast"), ("", "slow"), ("", "slow")),
    saves_power=True,
    message_timeout_s=5,
)
sidecar = daemon_under(POLICY, starts=False)


def state_of(cluster: SlurmTestCluster, node: str) -> NodeState:
    nodes = whole_look(create(cluster.config.batch_options())).nodes or ()
    return next(one.state for one in nodes if one.name == node)


@pytest.mark.long
def test_a_job_gets_what_it_prefers_although_other_nodes_are_free(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, tmp_path: Path
) -> None:
    """So does Slurm: it preempts pilots there, against the constraint, too."""
    sidecar.start()
    spec = light_spec(tmp_path / "on-fast", n_max=2, constraint="fast")
    trainer = sidecar.client.submit(spec).record.trainer_id
    wait_for(lambda: set(sidecar.client.trainer(trainer).observed_nodes) == FAST, what="both")
    asks = ("--prefer=fast", "--constraint=slow")
    job = cluster.submit(n_nodes=1, duration_s=900, limit_s=900, extra_args=asks)
    wait_for(lambda: cluster.started_s(job), what="the start of the job")
    noted = (cluster.directory / "ev" / job).read_text().split()
    assert noted[2] in FAST
    left = FAST - {noted[2]}
    wait_for(lambda: set(sidecar.client.trainer(trainer).observed_nodes) == left, what="the rest")
    cluster.cancel(job)
    sidecar.client.cancel(trainer, now=True)
    wait_for(lambda: {state_of(cluster, n) for n in FAST} == {NodeState.IDLE}, what="all idle")


@pytest.mark.long
def test_a_node_that_is_off_is_not_booted_and_one_that_is_to_go_off_is_left(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, tmp_path: Path
) -> None:
    cluster.set_node("n4", "power_down")
    assert state_of(cluster, "n4") is NodeState.POWER_SAVING
    sidecar.start()
    spec = light_spec(tmp_path / "wants-all", n_max=4)
    trainer = sidecar.client.submit(spec).record.trainer_id

    def trains_on(*nodes: str) -> None:
        def trains() -> bool:
            return set(sidecar.client.trainer(trainer).observed_nodes) == set(nodes)

        wait_for(trains, what=f"training on {nodes}")

    trains_on("n1", "n2", "n3")
    cluster.set_node("n3", "power_down")  # takes effect when nothing runs there
    trains_on("n1", "n2")
    off = ("sinfo", "-h", "-N", "-p", "batch", "-n", "n3,n4", "-o", "%T")
    going = {"idle!", "idle%", "idle~"}
    wait_for(lambda: set(cluster.command(*off).stdout.split()) <= going, what="both go off")
    shown = {node.name: node for node in sidecar.client.nodes()}
    assert shown["n4"].reason.startswith("It is power-saving")
    assert booted(cluster.config) == []
    sidecar.client.cancel(trainer, now=True)


@pytest.mark.long
def test_for_an_ordinary_job_slurm_boots(cluster: SlurmTestCluster) -> None:
    cluster.set_node("n4", "power_down")
    shown = ("sinfo", "-h", "-p", "batch", "-n", "n4", "-o", "%T")
    wait_for(lambda: cluster.command(*shown).stdout.split() == ["idle~"], what="n4 is off")
    cluster.submit(n_nodes=1, duration_s=900, limit_s=900, extra_args=("-w", "n4"))
    wait_for(lambda: booted(cluster.config), what="a boot")
