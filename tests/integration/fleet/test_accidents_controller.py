"""Accidents of the controller: it is away, another one takes over, munge, clocks.

docs/howto/operate.md ("Accidents") says what an administrator sees of each.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer.batch import process
from bftrainer.cli.main import cli
from slurm_plugins.testcluster import FAST_CYCLE, ClusterConfig
from slurm_plugins.testcluster.cluster import SlurmTestCluster
from tests.integration.accident_site import AccidentSite
from tests.integration.slurm_fixtures import enterable_directory, need_slurm, remove_cluster
from tests.support import controllers
from tests.support.clocks import PythonClock
from tests.support.controllers import BackupCluster, OtherClock, other_clock
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="a second controller needs namespaces"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[BackupCluster]:
    """Three nodes, and two controllers."""
    need_slurm()
    directory = enterable_directory()
    cluster = BackupCluster(
        ClusterConfig(
            directory=directory,
            n_nodes=3,
            gpus_per_node=0,
            bf_interval_s=2,
            message_timeout_s=3,
            scheduler_parameters=FAST_CYCLE,
        )
    )
    try:
        cluster.up()
        yield cluster
    finally:
        remove_cluster(cluster)


@pytest.fixture(scope="module")
def running(
    cluster: BackupCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AccidentSite]:
    """A trainer on two of the nodes, for all tests here."""
    with AccidentSite.open(cluster, tmp_path_factory.mktemp("site")) as site:
        site.trains(2)
        yield site


class Undisturbed:
    """What must be the same before and after an accident that concerns no node."""

    def __init__(self, site: AccidentSite) -> None:
        self._site = site
        site.trains_on_all(2)
        site.is_known()
        site.logged()
        self._before = self._seen()

    def _seen(self) -> tuple[object, ...]:
        view, status = self._site.view(), self._site.status()
        numbers = (status.give_backs, status.preemptions, self._site.requested())
        return (self._site.pilots(), self._site.workers(), view.record.rescales, numbers)

    def check(self) -> None:
        self._site.is_known()
        self._site.trains_on()
        self._site.is_unharmed()
        assert self._seen() == self._before
        self._site.starts_at_once()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("outage_s", [0, pytest.param(60, marks=pytest.mark.long)])
def test_the_controller_is_away_and_comes_back(
    cluster: BackupCluster, running: AccidentSite, outage_s: float
) -> None:
    same = Undisturbed(running)
    cluster.stop_controller()
    began_s = time.monotonic()
    status = running.is_unknown()
    assert any("Unable to contact slurm controller" in f for f in status.failures)
    running.trains_on()
    wait_for(lambda: time.monotonic() - began_s >= outage_s, timeout_s=90, what="the outage")
    assert running.status().observed == "unknown"
    cluster.start_controller()
    same.check()
    assert len(running.logged()) == 1


def test_a_controller_that_reads_its_settings_again(
    cluster: BackupCluster, running: AccidentSite
) -> None:
    same = Undisturbed(running)
    assert cluster.command("scontrol", "reconfigure").is_ok
    running.looks(3)
    same.check()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_backup_takes_over_and_the_first_one_comes_back(
    cluster: BackupCluster, running: AccidentSite
) -> None:
    same = Undisturbed(running)
    cluster.start_backup()
    assert cluster.command("scontrol", "takeover").is_ok
    wait_for(
        lambda: (
            "(primary)" in (said := cluster.command("scontrol", "ping").stdout) and "DOWN" in said
        ),
        what="the first controller is gone",
    )
    wait_for(lambda: cluster.command("sinfo").is_ok, what="the backup answers")
    same.check()
    cluster.start_controller()
    same.check()
    cluster.stop_backup()
    assert len(running.logged()) <= 2  # one for each change


def first_is_gone(cluster: BackupCluster) -> bool:
    said = cluster.command("scontrol", "ping").stdout
    return "(primary)" in said and "DOWN" in said


@pytest.mark.long
def test_munge_is_down_and_comes_back(cluster: BackupCluster, running: AccidentSite) -> None:
    same = Undisturbed(running)
    controllers.stop_munge(cluster.directory, "munge")
    status = running.is_unknown()
    assert any("BFT-1551" in f and "systemctl start munge" in f for f in status.failures)
    running.trains_on()
    running.looks(1)
    argv = controllers.munge_argv(cluster.directory, "munge")
    assert process.run(argv, timeout_s=20).is_ok
    same.check()
    assert len(running.logged()) == 1


@pytest.fixture
def host(cluster: BackupCluster) -> Iterator[OtherClock]:
    if controllers.FAKETIME is None:
        pytest.fail("libfaketime is not installed: scripts/install_system.sh packages")
    with other_clock(cluster) as host:
        yield host


def doctor(cluster: SlurmTestCluster, host: OtherClock) -> dict[str, str]:
    """What it finds there, by code."""
    option = f"--batch-option=slurm_conf={host.slurm_conf}"
    done = CliRunner().invoke(cli, ["doctor", option, "--json"])
    return {f["code"]: f"{f['setting']} {f['cost']}" for f in json.loads(done.stdout)["findings"]}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_clock_that_is_10_s_off_costs_nothing_and_one_that_is_5_min_off_is_said(
    cluster: BackupCluster, host: OtherClock, running: AccidentSite, tmp_path: Path
) -> None:
    running.sidecar.client.cancel(running.trainer, now=True)
    host.set_ahead(-10)
    options = {**cluster.config.batch_options(), "slurm_conf": str(host.slurm_conf)}
    with AccidentSite.open(
        cluster, tmp_path, options=options, environment=host.environment
    ) as site:
        site.trains(2)
        assert any("BFT-1554" in line for line in site.logged())
        site.starts_at_once()
        same = Undisturbed(site)
        host.set_ahead(-301)
        status = site.is_unknown()
        assert any("BFT-1552" in f and "clocks differ" in f for f in status.failures)
        assert "BFT-1552" in doctor(cluster, host)["BFT-1272"]
        site.trains_on()
        site.looks(3)
        assert len(site.logged()) == 1
        host.set_ahead(463 * 86_400)  # its munge and its commands, too
        assert any("BFT-1317" in f for f in site.is_unknown().failures)
        site.trains_on()
        host.set_ahead(0)
        same.check()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_daemon_whose_clock_jumps_by_a_year_parks_nobody(
    cluster: BackupCluster, running: AccidentSite, tmp_path: Path
) -> None:
    """Its clock alone: Slurm goes on answering. ``test_clock_jumps`` failed before."""
    running.sidecar.client.cancel(running.trainer, now=True)
    clock = PythonClock(tmp_path / "clock")
    environment = clock.environment()
    clock.set_ahead(0)
    with AccidentSite.open(cluster, tmp_path, environment=environment) as site:
        site.trains(2)
        before = site.workers(), site.pilots()
        for days in (463, -463):
            clock.set_ahead(days * 86_400)
            site.looks(3)
            assert any("BFT-1317" in f for f in site.status().failures)
            site.starts_at_once()
            site.trains_on()
        site.sidecar.kill()
        site.sidecar.start()
        site.trains_on_all(2)
        assert (site.workers(), site.pilots()) == before
        killed = next(iter(before[1]))
        assert cluster.command("scancel", killed).is_ok
        wait_for(lambda: killed not in site.pilots(), what="that pilot is gone")
        site.trains_on_all(2)  # another pilot was accepted: its deadline is not in the past
        site.is_unharmed()
