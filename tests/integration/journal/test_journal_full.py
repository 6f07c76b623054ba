"""A daemon whose disk is full: it gives back, begins nothing, and recovers by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.daemon.journal_replay import take_again
from bftrainer.journal import Journal
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerState
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.site import Site, start_warm_server
from tests.support.small_disk import fill
from tests.support.small_disk import small_disk as mounted
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
hold_idle_s: 20
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory on a file system of 24 MB."""
    with mounted(tmp_path / "disk", "24m") as place:
        yield place


@pytest.mark.long
def test_a_full_disk_costs_nobody_a_node_and_the_daemon_recovers(
    small_disk: Path, tmp_path: Path
) -> None:
    with start_warm_server(tmp_path / "local", n_nodes=2, cycle_s=0.5) as server:
        sidecar = DaemonProcess(
            small_disk / "state",
            batch_system="local",
            batch_options={"socket": str(server.socket_path)},
            policy=POLICY,
        )
        sidecar.log, sidecar.out = tmp_path / "daemon.log", tmp_path / "daemon.out"
        site = Site(tmp_path, server, sidecar)
        try:
            sidecar.start()
            _full_and_free_again(site, small_disk, tmp_path)
        finally:
            sidecar.stop()
    with Journal.open(small_disk / "state" / "journal.db", clock=lambda: 0.0) as journal:
        assert journal.verify() > 0
        assert [a for a in take_again(journal.entries()) if not a.is_equal] == []
        [late] = journal.entries("caught-up")
        assert late.payload["why"] == "BFT-2201"


def _full_and_free_again(site: Site, disk: Path, tmp_path: Path) -> None:
    sidecar, pid = site.sidecar, site.sidecar.pid
    trainer = site.client.submit(trainer_spec(tmp_path / "one", SLOW)).record.trainer_id
    site.trains_at(trainer, 2)  # before the other one asks for the same two nodes
    other = site.client.submit(trainer_spec(tmp_path / "two", SLOW, n_min=2)).record.trainer_id
    ballast = fill(disk)
    with pytest.raises(BftError, match="BFT-2201"):
        site.client.submit(trainer_spec(tmp_path / "three", SLOW))
    job = site.server.client.submit(n_nodes=2, limit_s=60, duration_s=3, user="alice")
    wait_for(
        lambda: any(h["job_id"] == job for h in site.server.client.history()),
        what="the ordinary job ran on both nodes",
    )
    assert sidecar.is_running()
    assert any("BFT-2201" in f for f in site.client.status().failures)
    assert "bftrainer_journal_writable 0" in site.client.metrics()
    wait_for(
        lambda: any("BFT-2230" in f for f in site.client.status().failures),
        what="the disk is told to be full",
    )
    assert site.client.cancel(other).record.state is TrainerState.CANCELLED
    looks = site.client.status().polling
    assert looks is not None
    wait_for(
        lambda: (p := site.client.status().polling) is not None and p.looks > looks.looks + 5,
        what="it has looked at idle nodes",
    )
    assert site.view(trainer).observed_nodes == ()
    ballast.unlink()
    site.trains_at(trainer, 2)
    site.trains_on(trainer)
    assert not any("BFT-2201" in f for f in site.client.status().failures)
    assert "bftrainer_journal_writable 1" in site.client.metrics()
    assert sidecar.pid == pid
    text = sidecar.log.read_text()
    assert text.count("BFT-2201") == 1, text
    assert "can be written again" in text
    assert "Traceback" not in sidecar.out.read_text()
    assert site.client.trainer(other).record.state is TrainerState.CANCELLED
