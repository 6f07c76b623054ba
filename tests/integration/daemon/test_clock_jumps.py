"""Somebody sets the clock of the daemon's host while trainers train: nothing happens to them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from tests.integration.daemon_scripts import LIGHT, trainer_spec
from tests.support.clocks import PythonClock
from tests.support.site import Site, start_warm_server
from tests.support.waiting import wait_for

HOUR_S, DAY_S, YEAR_S = 3600, 86_400, 463 * 86_400
POLICY = """\
poll_interval_s: 0.2
min_gap_s: 0
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.3
journal_days: 30
"""


@pytest.fixture
def clock(tmp_path: Path) -> PythonClock:
    return PythonClock(tmp_path / "clock")


@pytest.fixture
def site(tmp_path: Path, clock: PythonClock) -> Iterator[Site]:
    make = partial(DaemonProcess, environment=clock.environment())
    clock.set_ahead(0)
    with (
        start_warm_server(tmp_path / "local", n_nodes=2, cycle_s=0.5) as server,
        Site.on(server, tmp_path, POLICY, make) as opened,
    ):
        yield opened


def _looks(site: Site) -> int:
    polling = site.client.status().polling
    return polling.looks if polling is not None else 0


def _undisturbed(site: Site, trainer: str, generation: int) -> None:
    """It trains on, in the same generation, after polls and decisions by the present clock."""
    before = _looks(site)
    wait_for(lambda: _looks(site) >= before + 3, what="it looks")
    site.trains_on(trainer)
    view = site.view(trainer)
    assert (view.record.state, view.record.progress.generation) == ("running", generation)
    assert not site.sidecar.entries("parked")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_jumps_before_and_after_restarts_park_nobody_and_keep_the_nodes(
    site: Site, tmp_path: Path, clock: PythonClock
) -> None:
    """Failed before: at +463 days the trainer was parked, and no node was taken any more."""
    ended = site.client.submit(trainer_spec(tmp_path / "zero", LIGHT, runtime="mpi", epochs=None))
    site.client.cancel(ended.record.trainer_id, now=True)
    spec = trainer_spec(tmp_path / "one", LIGHT, runtime="mpi", epochs=None, n_max=2)
    trainer = site.client.submit(spec).record.trainer_id
    site.trains_at(trainer, 2)
    generation = site.view(trainer).record.progress.generation
    for ahead_s in (HOUR_S, -HOUR_S, DAY_S + HOUR_S, -DAY_S - HOUR_S, YEAR_S, -YEAR_S):
        clock.set_ahead(ahead_s)
        _undisturbed(site, trainer, generation)
        said = " ".join(site.client.status().failures)
        assert ("BFT-1317" in said) is (abs(ahead_s) > DAY_S), said
    site.sidecar.kill()
    site.sidecar.start()  # with the clock still wrong
    _undisturbed(site, trainer, generation)
    site.sidecar.stop()
    clock.set_ahead(YEAR_S)  # while no daemon runs
    site.sidecar.start()
    _undisturbed(site, trainer, generation)
    known = site.view(ended.record.trainer_id).record  # a year later it would be forgotten
    later = site.client.submit(trainer_spec(tmp_path / "two", LIGHT, runtime="mpi", epochs=None))
    assert 0 <= later.record.submitted_s - known.submitted_s < HOUR_S
    site.client.cancel(trainer, now=True)
    site.trains_at(later.record.trainer_id, 1, 2)  # nodes are taken, too
