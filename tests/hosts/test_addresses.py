"""Addresses and ports between hosts: who reaches whom, and what is said where nobody does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.hosts import Names, rules, running_hosts
from tests.support.hosts.own_daemon import OwnDaemon
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm
PORTS = "21000-21040"


@contextmanager
def own_daemon(**settings: Any) -> Iterator[OwnDaemon]:
    with running_hosts(**settings) as cluster, OwnDaemon(cluster) as daemon:
        yield daemon


def up(daemon: OwnDaemon, *options: str) -> None:
    daemon.does("up", "--partition", "bf", *options)


def written(daemon: OwnDaemon, name: str) -> str:
    (found,) = daemon.cluster.home.glob(f"ada/.bftrainer/*/{name}")
    return found.read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "reached"),
    [
        ("debian", "10.77.0.3"),
        pytest.param("outside", "10.77.0.3", marks=pytest.mark.long),
        pytest.param("ipv6", "[fd77::3]", marks=pytest.mark.long),
    ],
)
def test_a_trainer_trains_whatever_the_hosts_file_says(names: Names, reached: str) -> None:
    with own_daemon(n_nodes=2, names=names) as daemon:
        up(daemon)
        assert written(daemon, "endpoint").startswith(f"tcp://{reached}:")
        trainer = daemon.submit_train("2:2")
        daemon.trains_at(trainer, 2)
        assert trainer in daemon.says("status", host="n1").stdout


@pytest.mark.long
def test_the_printed_rules_are_all_that_closed_hosts_need_and_one_network_is_used() -> None:
    with own_daemon(n_nodes=2, two_networks=True) as daemon:
        up(daemon, "--network", "10.78.0.0/24", "--ports", PORTS)
        policy = "/home/ada/.bftrainer/hosts/policy.yaml"
        printed = daemon.does("doctor", "--policy", policy, "--firewall", "nftables")
        rules.close_but_for(daemon.cluster, printed)
        trainer = daemon.submit_train("2:2")
        daemon.trains_at(trainer, 2)  # the rules let nothing in from the other network
        assert trainer in daemon.says("status", host="n1").stdout


@pytest.mark.long
def test_a_daemon_that_agents_cannot_reach_is_told() -> None:
    with own_daemon(n_nodes=2) as daemon:
        rules.close(daemon.cluster, "login")
        up(daemon)
        trainer = daemon.submit_train("2:2")
        where = written(daemon, "endpoint").removeprefix("tcp://")

        def is_told() -> bool:
            told = daemon.does("explain", trainer)
            return f"its agent has not connected to {where}." in " ".join(told.split())

        wait_for(is_told, interval_s=0.5, what="explain says it")
        assert "late agent  Its job " in daemon.does("status")
        assert "has not connected to" in daemon.does("nodes")
        assert "BFT-1314" in daemon.says("doctor").stdout
        assert written(daemon, "daemon.log").count("BFT-1314") == 1
        far = daemon.says("status", host="n1").stderr
        assert "BFT-1101" in far
        assert "a firewall may" in far
        rules.replace(daemon.cluster.pid("login"), "filter")
        daemon.trains_at(trainer, 2)
        assert "late agent" not in daemon.does("status")


@pytest.mark.long
def test_addresses_that_no_agent_can_reach_are_refused() -> None:
    with own_daemon(n_nodes=1) as daemon:
        for words, code in (
            (("--bind", "127.0.0.1"), "BFT-1312"),
            (("--bind", "localhost"), "BFT-1312"),
            (("--network", "10.99.0.0/16"), "BFT-1313"),
            (("--network", "ib0"), "BFT-1313"),
        ):
            assert code in daemon.says("up", "--partition", "bf", *words).stderr


@pytest.mark.long
def test_ports_survive_a_restart_and_another_address_serves_if_the_first_does_not() -> None:
    with own_daemon(n_nodes=1, two_networks=True) as daemon:
        up(daemon, "--ports", PORTS)
        kept = ("endpoint", "api-endpoint")
        before = [written(daemon, name) for name in kept]
        assert all(one.startswith("tcp://10.77.0.3:210") for one in before)
        pid = daemon.cluster.process("login", "bftrainer daemon")
        os.kill(pid, signal.SIGKILL)
        up(daemon, "--ports", PORTS)
        assert [written(daemon, name) for name in kept] == before
        trainer = daemon.submit_train("1:1")
        closed = "ip daddr 10.77.0.3 tcp dport >= 21000 drop"
        rules.replace(daemon.cluster.pid("login"), "first", closed)
        daemon.trains_at(trainer, 1)
        assert trainer in daemon.says("status", host="n1").stdout
