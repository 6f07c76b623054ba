"""A trainer on the stand-in of LSF: grows, gives back, is preempted, and uses every sample once."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.elastic.loop.try_record import RECORD as VARIABLE
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.lab.try_records import Records, epochs
from lsf_adapters.testcluster import LsfTestCluster, Profile
from tests.integration.daemon_scripts import SCALES, SCALING, trainer_spec
from tests.integration.lsf_fixtures import PARAMETERS, running_lsf
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.5
requests_per_minute: 1000
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
hold_idle_s: 2
"""
SAMPLES = 240  # of an epoch


@pytest.fixture
def cluster() -> Iterator[LsfTestCluster]:
    profile = dataclasses.replace(Profile.FAST, mbd_sleep_s=1.0, new_job_sched_delay_s=None)
    with running_lsf(dialect="ibm", n_nodes=3, parameters=PARAMETERS, profile=profile) as running:
        yield running


class Site:
    """The stand-in, a daemon and one trainer."""

    def __init__(self, cluster: LsfTestCluster, base: Path) -> None:
        self.cluster, self.noted = cluster, base / "noted"
        self.noted.mkdir()
        self.sidecar = DaemonProcess(
            base / "state",
            batch_system="lsf",
            batch_options=cluster.config.batch_options(),
            policy=POLICY,
        )
        self.sidecar.start()
        told = (("OMP_NUM_THREADS", "1"), (VARIABLE, str(self.noted)))
        spec = trainer_spec(base / "trainer", SCALES, n_max=3, environment=told, curve=SCALING)
        self.trainer = self.sidecar.client.submit(spec).record.trainer_id

    @property
    def samples(self) -> int:
        return self.sidecar.client.trainer(self.trainer).record.progress.samples

    def trains_at(self, *sizes: int) -> None:
        before = self.samples

        def reached() -> bool:
            progress = self.sidecar.client.trainer(self.trainer).record.progress
            return progress.size in sizes and progress.samples > before

        wait_for(reached, what=f"it trains at one of the sizes {sizes}")


@pytest.fixture
def site(cluster: LsfTestCluster, tmp_path: Path) -> Iterator[Site]:
    made = Site(cluster, tmp_path)
    try:
        yield made
    finally:
        if made.sidecar.is_running():
            made.sidecar.client.cancel(made.trainer, now=True)
        made.sidecar.stop()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_it_trains_on_what_lsf_leaves_idle(cluster: LsfTestCluster, site: Site) -> None:
    site.trains_at(3)

    # Told by lsb.events, the daemon gives nodes back before LSF preempts; LSF's next pass may come
    # at once, so one job of five suffices.
    for _ in range(5):
        job = cluster.submit(n_nodes=2, duration_s=2, limit_s=60)
        wait_for(functools.partial(cluster.started_s, job), what="an ordinary job starts")
        site.trains_at(1)
        site.trains_at(3)
        if site.sidecar.client.status().give_backs:
            break

    # The daemon is stopped: LSF preempts a pilot by itself, and the others go on.
    os.kill(site.sidecar.pid, signal.SIGSTOP)
    try:
        job = cluster.submit(n_nodes=1, duration_s=3, limit_s=60)
        wait_for(lambda: cluster.started_s(job), what="an ordinary job preempts a pilot")
    finally:
        os.kill(site.sidecar.pid, signal.SIGCONT)
    site.trains_at(1, 2)
    site.trains_at(3)

    status = site.sidecar.client.status()
    assert status.give_backs >= 1
    assert status.preemptions >= 1
    assert status.give_backs + status.preemptions >= 3
    assert site.sidecar.client.trainer(site.trainer).record.failures == 0
    wait_for(lambda: site.samples > 3 * SAMPLES, what="some epochs")
    noted = Records(site.noted)
    noted.look()
    *whole, _ = epochs(noted.processes)
    assert len(whole) >= 2
    assert all(use.is_once for use in whole)
