"""A daemon whose journal was restored from a backup, while its pilots of then still run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.errors import BftError
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.site import Site, start_warm_server
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.5
agent_timeout_s: 4
"""


class Accepting(DaemonProcess):
    """One that may be told to accept a loss."""

    accepts: tuple[str, ...] = ()

    def argv(self) -> tuple[str, ...]:
        return (*super().argv(), *self.accepts)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with (
        start_warm_server(tmp_path / "local", n_nodes=2, cycle_s=0.5) as server,
        Site.on(server, tmp_path, POLICY, Accepting) as opened,
    ):
        yield opened


@pytest.mark.long
def test_it_says_what_is_missing_and_goes_on_beside_the_pilots_it_forgot(
    site: Site, tmp_path: Path
) -> None:
    sidecar, state = site.sidecar, site.sidecar.state_dir
    assert isinstance(sidecar, Accepting)
    site.server.client.submit(n_nodes=2, limit_s=600, duration_s=600, user="alice")
    trainer = site.client.submit(trainer_spec(tmp_path / "one", SLOW)).record.trainer_id
    sidecar.stop()
    shutil.copy(state / "journal.db", tmp_path / "backup.db")
    site.server.client.cancel([j["job_id"] for j in site.server.client.snapshot()["jobs"]])
    sidecar.start()
    site.trains_at(trainer, 2)
    sidecar.kill()
    for file in state.glob("journal.db*"):
        file.unlink()
    shutil.copy(tmp_path / "backup.db", state / "journal.db")
    (state / "endpoint").write_bytes(b"")
    with pytest.raises(BftError, match="BFT-1022"):
        sidecar.start()
    words = sidecar.out.read_text()
    assert "BFT-2213" in words
    assert "Traceback" not in words
    asked = re.search(r"--accept-loss \d+", words)
    assert asked is not None, words
    sidecar.accepts = tuple(asked[0].split())
    assert sidecar.start().incarnation == 3
    assert site.view(trainer).record.rescales == 0  # as the backup has it
    site.trains_at(trainer, 2)
    site.trains_on(trainer)
    pilots = {node.pilot_id for node in site.client.nodes()}
    assert pilots == {"p000003", "p000004"}
    wait_for(
        lambda: (
            sorted(j["pilot_id"] for j in site.server.client.snapshot()["jobs"])
            == ["p000003", "p000004"]
        ),
        what="the forgotten pilots are gone",
    )
    assert "is not in the journal: it is cancelled" in sidecar.log.read_text()
