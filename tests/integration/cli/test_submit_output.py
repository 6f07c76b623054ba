"""``submit --output`` on a real daemon: the file has what workers write, until their last line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.model.trainer import TrainerState
from tests.conformance.runtime import POLICY
from tests.support.site import Site
from tests.support.waiting import wait_for

PROGRAM = """#!/bin/sh
#BFT -o %x-%j.out --runtime command -J shown
echo 'BFT ready'
echo to standard error >&2
echo attempt $BFT_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT ${SLURM_RESTART_COUNT:-none}
test -e go-on && echo last && exit 0
trap 'exit 85' USR1
while :; do sleep 0.05; done
"""


def test_the_file_has_what_the_worker_writes_in_every_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program, output = tmp_path / "program", tmp_path / "shown-t1.out"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    with Site.open(tmp_path / "site", n_nodes=1, policy=POLICY, options=()) as site:
        socket = str(site.sidecar.state_dir / "daemon.sock")
        assert main(["submit", "--socket", socket, "--runtime", "command", str(program)]) == 0
        wait_for(lambda: output.exists() and "attempt" in output.read_text(), what="a first line")
        assert "to standard error" in output.read_text()
        assert main(["status", "t1", "--socket", socket]) == 0
        assert str(output) in capsys.readouterr().out
        (tmp_path / "go-on").touch()
        site.client.requeue("t1")
        site.in_state("t1", TrainerState.FINISHED)
        logs = tmp_path / "bft-shown" / "logs"

        def is_whole() -> bool:
            sizes = [log.stat().st_size for log in logs.iterdir()]
            return "last\n" in output.read_text() and output.stat().st_size == sum(sizes)

        wait_for(is_whole, what="all that workers wrote")
    lines = output.read_text().splitlines()
    assert [line for line in lines if line.startswith("attempt")] == [
        "attempt 0 0 none",
        "attempt 1 1 1",
    ]
