"""Hosts whose monotonic clocks differ by days: no instant of one means anything to another."""

from __future__ import annotations

import sys

import pytest

from tests.support.hosts import running_hosts
from tests.support.hosts.own_daemon import OwnDaemon, updates, uses
from tests.support.hosts.why_not import why_no_clocks
from tests.support.waiting import wait_for

DAY_S = 86400
UP_S = {"ctl": 9 * DAY_S, "n1": 400 * DAY_S, "n2": 3 * DAY_S}  # login: as this machine
EPOCHS = 150
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(why_no_clocks()), reason=why_no_clocks())]


@pytest.mark.long
def test_a_trainer_of_hosts_that_have_been_up_for_days_or_minutes_loses_a_worker() -> None:
    with running_hosts(n_nodes=2, up_s=UP_S) as cluster, OwnDaemon(cluster) as daemon:
        says = (sys.executable, "-c", "import time; print(time.monotonic())")
        seen = [float(cluster.does(host, *says)) for host in ("n1", "n2", "login")]
        assert seen[0] - seen[1] > 390 * DAY_S
        assert seen[1] - seen[2] > 2 * DAY_S
        daemon.does("up", "--partition", "bf")
        daemon.polls_each(1.0)
        trainer = daemon.submit_train("1:2", epochs=EPOCHS)
        daemon.trains_at(trainer, 2)
        before = wait_for(lambda: generation_of_two(daemon), what="an update of two")
        (worker,) = (name.rpartition("-")[2] for node, name in daemon.records() if node == "n1")
        cluster.does("n1", "kill", "-KILL", worker)
        wait_for(lambda: generation_of_two(daemon) > before, interval_s=0.2, what="two again")
        daemon.hurry()
        daemon.ends(trainer)
        assert {one.size for one in updates(daemon.records())} == {1, 2}
        once = uses(daemon.records())
        assert [epoch.epoch for epoch in once] == list(range(EPOCHS))
        assert all(epoch.is_once and epoch.used == epoch.of for epoch in once)


def generation_of_two(daemon: OwnDaemon) -> int:
    """Return the newest that has made an update; 0: none."""
    every = (one.generation for one in updates(daemon.records()) if one.size == 2)
    return max(every, default=0)
