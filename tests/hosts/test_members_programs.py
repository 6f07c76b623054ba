"""The same for what gloo does not connect: MPI, resized in place, and programs, by restart."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.hosts import Cluster
from tests.support.hosts.cluster import cluster_of_hosts
from tests.support.hosts.own_daemon import OwnDaemon
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long]
EXAMPLES = Path(__file__).parents[2] / "trainers" / "examples"
MPI = ("--runtime", "mpi", "--interpreter", sys.executable, str(EXAMPLES / "mpi_sgd.py"))
COMMAND = ("--runtime", "command", "--", sys.executable, str(EXAMPLES / "command_sgd.py"))


cluster = cluster_of_hosts(n_nodes=3)


@pytest.mark.parametrize(
    "words",
    [(*MPI, "--steps", "1000000", "--pause", "0.1"), (*COMMAND, "--steps", "1000000")],
    ids=["mpi", "command"],
)
def test_one_of_two_that_do_not_hear_each_other_is_left_out(
    cluster: Cluster, words: tuple[str, ...]
) -> None:
    with OwnDaemon(cluster) as daemon:
        daemon.does("up", "--partition", "bf")
        trainer = daemon.does("submit", "--parsable", "--nodes", "1:3", *words).strip()
        daemon.trains_at(trainer, 3)
        cluster.block("n1", "n3")
        daemon.trains_at(trainer, 2)
        wait_for(lambda: daemon.status().get("cuts"), interval_s=0.5, what="the pair is named")
        cluster.unblock("n1", "n3")
        daemon.trains_at(trainer, 3)
        daemon.does("cancel", "--now", trainer)
