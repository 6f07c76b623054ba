"""A study meets another daemon than the one it began with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bftrainer.model.errors import ExitCode
from tests.integration.study_fixtures import POLICY, StudyUser, end
from tests.support.site import Site
from tests.support.waiting import wait_for

EPOCHS = 80


@pytest.mark.long
def test_another_daemon_trains_nothing_twice_until_it_is_told_to(tmp_path: Path) -> None:
    with (
        Site.open(tmp_path / "a", n_nodes=2, policy=POLICY) as a,
        Site.open(tmp_path / "b", n_nodes=2, policy=POLICY) as b,
    ):
        user = StudyUser(a, tmp_path / "user")
        user.write("moved", rule={"name": "none", "trials": 1, "most": EPOCHS})
        _until(user, "trial 0 starts", user.start("moved", "moved.yaml", "train.py"))

        _uses(user, b)
        _is_refused(user)  # though nothing has been reported yet
        assert b.client.trainers() == ()
        (begun,) = a.client.trainers()
        a.client.cancel(begun.record.trainer_id)
        wait_for(lambda: a.view(begun.record.trainer_id).record.state.is_final)
        (user.home / "moved.out").unlink()
        _until(user, "value", user.start("moved", "--new-daemon", "moved"))

        _uses(user, a)  # its is no more
        _is_refused(user)
        _uses(user, b)
        done = user.does("run", "moved")
        assert done.is_ok, done.stderr
        (trial,) = user.summary("moved")["trials"]
        assert (trial["stage"], trial["units"]) == ("complete", EPOCHS)
        assert {epoch for _, epoch in user.trained()} == set(range(EPOCHS))


def _uses(user: StudyUser, site: Site) -> None:
    user.env["BFTRAINER_SOCKET"] = os.fspath(site.client.socket_path)


def _until(user: StudyUser, said: str, loop: subprocess.Popen[bytes]) -> None:
    """Kill a loop when it has said something."""
    out = user.home / "moved.out"
    try:
        wait_for(lambda: loop.poll() is not None or said in out.read_text())
        assert loop.poll() is None, out.read_text()
    finally:
        end(loop)


def _is_refused(user: StudyUser) -> None:
    for words in (("run", "moved"), ("run", "--detach", "moved")):
        refused = user.does(*words)
        assert refused.returncode == ExitCode.USAGE
        assert "error BFT-1630: " in refused.stderr
