"""``submit --time`` on a real daemon: at its end a trainer is parked until the limit is longer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.model.trainer import TrainerState
from tests.conformance.runtime import POLICY
from tests.integration.daemon_scripts import trainer_spec
from tests.support.site import Site
from tests.support.waiting import wait_for

# Counts its starts in a file, and writes a checkpoint when it is asked to.
PROGRAM = """#!/bin/sh
trap 'echo saved >> saved; exit 85' USR1
echo started >> started
echo 'BFT ready'
while :; do sleep 0.05; done
"""


def test_at_its_end_a_trainer_saves_and_parks_until_its_limit_is_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "limited"
    spec = trainer_spec(place, "", runtime="command", epochs=None, n_max=1)
    for name, text in (("run", PROGRAM), ("tell", f"#!/bin/sh\nenv > {place}/told\n")):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    spec = replace(
        spec, script=str(place / "run"), interpreter="", cwd=str(place), time_limit_s=1.0,
        notify=str(place / "tell"),
    )  # fmt: skip
    with Site.open(tmp_path / "site", n_nodes=1, policy=POLICY, options=()) as site:
        trainer_id = site.client.submit(spec).record.trainer_id
        socket = str(site.sidecar.state_dir / "daemon.sock")
        view = site.in_state(trainer_id, TrainerState.PARKED)
        assert "Its time limit of 0:00:01 is over" in view.why
        assert (place / "saved").read_text() == "saved\n"
        wait_for((place / "told").exists, what="its user is told")
        told = (place / "told").read_text()
        assert "BFT_TRAINER_STATE=parked" in told
        assert "BFT_TRAINER_REASON=Its time limit of 0:00:01 is over" in told
        assert main(["explain", trainer_id, "--socket", socket]) == 0
        assert "time limit of 0:00:01 is over" in capsys.readouterr().out
        assert main(["status", trainer_id, "--socket", socket]) == 0
        assert "time limit" in capsys.readouterr().out
        # It keeps its rest across a restart of the daemon, and goes on when its limit is longer.
        site.sidecar.stop()
        site.sidecar.start()
        assert site.view(trainer_id).record.overtime_s is not None
        assert main(["update", trainer_id, "--time", "1:00:00", "--socket", socket]) == 0
        assert "time limit 1:00:00" in capsys.readouterr().out
        site.observed(trainer_id, 1)
        wait_for(lambda: (place / "started").read_text().count("started") == 2, what="it goes on")
        site.client.cancel(trainer_id, now=True)
        assert len(site.sidecar.entries("time-limit")) == 1
