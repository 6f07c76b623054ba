"""A study whose disk is full, is read-only or is somebody else's; and one that two want to run."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.study.directory import is_running, only_loop
from tests.integration.study_fixtures import HALVING, POLICY, StudyUser, end, outcome
from tests.support.site import Site
from tests.support.small_disk import fill, small_disk
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
WITHOUT_RETRY = {**HALVING, "retry": 0}
NOBODY = 65534


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m") as mounted:
        yield mounted


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_full_disk_ends_the_loop_and_no_trial(disk: Path, tmp_path: Path) -> None:
    with Site.open(tmp_path / "site", n_nodes=3, policy=POLICY) as site:
        whole = StudyUser(site, tmp_path / "whole")
        whole.write("half", **WITHOUT_RETRY)
        assert whole.does("run", "half.yaml", "train.py").is_ok
        user, path = StudyUser(site, tmp_path / "full"), disk / "half.study"
        user.write("half", **WITHOUT_RETRY)
        loop = user.start("half", "--dir", str(path), "half.yaml", "train.py")
        try:
            wait_for(lambda: user.trained().total() >= 1, interval_s=0.01)
            ballast = fill(disk)
            assert loop.wait(60) == 1
        finally:
            end(loop)
        said = (user.home / "half.out").read_text()
        assert "error BFT-1636: " in said, said
        assert "No space left on device" in said
        assert "Traceback" not in said
        assert "is failed" not in said
        ballast.unlink()
        again = user.does("run", str(path))
        assert again.is_ok, again.stderr
        found = json.loads(user.says("status", str(path), "--json"))
        assert outcome(found) == outcome(whole.summary("half"))
        _refuses_when_read_only(disk, user, path)


def _refuses_when_read_only(disk: Path, user: StudyUser, path: Path) -> None:
    """It cannot be run, and is as it was; what is there can be read."""
    before = sorted(path.rglob("*"))
    assert process.run(("mount", "-o", "remount,ro", str(disk)), timeout_s=30).is_ok
    for words in (("run",), ("run", "--detach")):
        done = user.does(*words, str(path))
        assert "Traceback" not in done.stderr
        assert "error BFT-1636: " in done.stderr
    assert user.says("status", str(path)).startswith("The best of half is trial ")
    assert sorted(path.rglob("*")) == before


@pytest.mark.long
def test_a_study_of_somebody_else_is_refused() -> None:
    with tempfile.TemporaryDirectory(prefix="bft-study-") as name:  # others may look into it
        (path := Path(name)).chmod(0o755)
        (path / "loop.lock").touch(0o600)
        os.seteuid(NOBODY)
        try:
            with pytest.raises(BftError, match=r"BFT-1636.*Permission denied"), only_loop(path):
                pass
            with pytest.raises(BftError, match=r"BFT-1636.*Permission denied"):
                is_running(path)
        finally:
            os.seteuid(0)


@pytest.mark.long
def test_the_second_one_is_told_who_runs_the_study(tmp_path: Path) -> None:
    who = f"process {os.getpid()} on {socket.gethostname()}"
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    with only_loop(tmp_path):
        assert is_running(tmp_path)
        with (
            pytest.raises(BftError, match=rf"BFT-1631.*{who}") as refused,
            only_loop(tmp_path / "link"),
        ):
            pass
    assert refused.value.exit_code == ExitCode.ALREADY_RUNNING
    assert not is_running(tmp_path)
