"""A study meets another daemon than the one it began with."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tests.integration.study_fixtures import POLICY, StudyUser, end
from tests.support.site import Site
from tests.support.waiting import wait_for

EPOCHS = 80


def test_another_daemon_trains_nothing_twice_until_it_is_told_to(tmp_path: Path) -> None:
    with contextlib.ExitStack() as first, Site.open(tmp_path / "b", n_nodes=2, policy=POLICY) as b:
        a = first.enter_context(Site.open(tmp_path / "a", n_nodes=2, policy=POLICY))
        user = StudyUser(a, tmp_path / "user")
        rule = {"name": "none", "trials": 1, "most": EPOCHS}
        user.write("moved", rule=rule)
        loop = user.start("moved", "moved.yaml", "train.py")
        try:
            out = user.home / "moved.out"
            wait_for(lambda: loop.poll() is not None or "value" in out.read_text())
            assert loop.poll() is None, out.read_text()
        finally:
            end(loop)

        user.env["BFTRAINER_SOCKET"] = os.fspath(b.client.socket_path)
        refused = user.does("run", "moved")
        assert refused.returncode == 1
        assert "error BFT-1630: " in refused.stderr
        assert "study run --new-daemon" in refused.stderr
        assert b.client.trainers() == ()
        first.close()  # it is gone for good

        done = user.does("run", "--new-daemon", "moved")
        assert done.is_ok, done.stderr
        summary = user.summary("moved")
        assert summary["state"] == "over"
        (trial,) = summary["trials"]
        assert (trial["stage"], trial["units"]) == ("complete", EPOCHS)
        assert {epoch for _, epoch in user.trained()} == set(range(EPOCHS))
