"""A journal is copied beside a training, and put back while the training goes on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer.cli.main import cli
from bftrainer.model.errors import BftError
from tests.integration.daemon.test_daemon_restored import POLICY, Accepting
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.site import Site, start_warm_server


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with (
        start_warm_server(tmp_path / "local", n_nodes=3, cycle_s=0.5) as server,
        Site.on(server, tmp_path, POLICY, Accepting) as opened,
    ):
        yield opened


def journal(site: Site, *argv: str) -> str:
    where = ("--state-dir", str(site.sidecar.state_dir))
    done = CliRunner().invoke(cli, ["journal", *argv, *where], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def workers(site: Site, trainer: str) -> list[str]:
    return re.findall(r"worker (\d+)", site.log_text(trainer))


@pytest.mark.long
def test_trainers_of_then_go_on_untouched_and_later_ones_are_named(
    site: Site, tmp_path: Path
) -> None:
    sidecar = site.sidecar
    assert isinstance(sidecar, Accepting)
    trainer = site.client.submit(trainer_spec(tmp_path / "one", SLOW)).record.trainer_id
    site.trains_at(trainer, 2)
    assert "Copied up to entry" in journal(site, "backup", str(tmp_path / "copy"))
    later = site.client.submit(trainer_spec(tmp_path / "two", SLOW)).record.trainer_id
    site.trains_at(later, 1, 2)
    before = workers(site, trainer)
    samples = site.view(trainer).record.progress.samples
    sidecar.kill()
    said = journal(site, "restore", str(tmp_path / "copy"))
    assert f"missing: trainers {later}" in said
    with pytest.raises(BftError, match="--accept-loss"):
        sidecar.start()
    asked = re.search(r"--accept-loss \d+", said)
    assert asked is not None
    sidecar.accepts = tuple(asked[0].split())
    sidecar.start()
    site.trains_at(trainer, 2, 3)
    site.trains_on(trainer)
    assert site.view(trainer).record.progress.samples >= samples
    for pid in before:
        os.kill(int(pid), 0)  # lives
    with pytest.raises(BftError):  # it does not pretend to know it
        site.view(later)
