"""A daemon of a user on a login host trains on other hosts: the story, from up to the end."""

from __future__ import annotations

import json

import pytest

from bftrainer.api.address import ADDRESS_NAME
from tests.support import far_attack, far_attacker
from tests.support.hosts import Cluster
from tests.support.hosts.cluster import cluster_of_hosts
from tests.support.hosts.own_daemon import OwnDaemon, updates, uses
from tests.support.hosts.plan import CONTROLLER, LOGIN
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm
EPOCHS = 150


cluster = cluster_of_hosts(scope="function", n_nodes=2)


@pytest.mark.long
def test_a_trainer_grows_over_hosts_gives_a_node_and_uses_each_sample_once(
    cluster: Cluster,
) -> None:
    with OwnDaemon(cluster) as daemon:
        daemon.does("up", "--partition", "scavenge")
        daemon.polls_each(1.0)
        trainer = daemon.submit_train("1:2", epochs=EPOCHS)
        daemon.trains_at(trainer, 2)
        job = cluster.does("login", "sbatch", "--parsable", "-N1", "--wrap=sleep 5", user="bob")
        daemon.trains_at(trainer, 1)
        shown = ("squeue", "-h", "-j", job.strip(), "-tall", "-o%T")
        wait_for(
            lambda: cluster.does("login", *shown).strip() == "COMPLETED", what="bob's job ends"
        )
        daemon.trains_at(trainer, 2)
        daemon.hurry()
        daemon.ends(trainer)
        assert "To be continued" not in daemon.does("down")
    records = daemon.records()
    assert {node for node, _ in records} == set(cluster.plan.nodes)
    assert {update.size for update in updates(records)} == {1, 2}
    found = uses(records)
    assert [epoch.epoch for epoch in found] == list(range(EPOCHS))
    assert all(epoch.is_once and epoch.used == epoch.of for epoch in found)
    assert not cluster.does("login", "squeue", "-h")


@pytest.mark.long
def test_verbs_on_other_hosts_are_answered_while_another_host_attacks(cluster: Cluster) -> None:
    with OwnDaemon(cluster) as ada:
        ada.does("up", "--partition", "scavenge")
        (file,) = cluster.home.glob(f"ada/.bftrainer/*/{ADDRESS_NAME}")
        port = int(json.loads(file.read_text())["endpoint"].rpartition(":")[2])
        place = (cluster.plan.address(LOGIN), port)
        recorded = [far_attacker.greeting(b"CURVE"), *2 * (far_attacker.REQUEST,)]
        for kind in far_attacker.KINDS:
            enter = cluster.argv("n1", user="eve", cwd="/")
            with far_attack.at_work(kind, *place, recorded, enter=enter):
                for host in (CONTROLLER, "n2"):
                    assert ada.says("status", host=host).is_ok, (kind, host)
