"""Checkpoints that are not written: what is told, and until when."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from bftrainer.elastic.checkpoints import checkpoint, disk
from bftrainer.elastic.process.control import Control
from bftrainer.fleet.generations import stimuli
from bftrainer.ground import files, protocol
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.fence import write_whole
from bftrainer.ground.files import patiently
from bftrainer.ground.process import own_name
from bftrainer.ground.protocol import Unsaved, WorkerConfig
from tests.support.generations import Driver


@contextmanager
def _control() -> Iterator[tuple[Control, socket.socket]]:
    """A worker's control, and the agent's end of its socket."""
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        ours.settimeout(60.0)
        config = WorkerConfig(trainer_id="t1", worker_id="t1-1-1", node="n1", script="/s.py")
        control = Control(config, None)  # nobody listens: the process would end with the socket
        control.channel = theirs
        yield control, ours


def _said(agent: socket.socket) -> Unsaved:
    message = protocol.decode(agent.recv(1 << 16).rstrip(b"\n"))
    assert isinstance(message, Unsaved)
    return message


def _fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EDQUOT])
def test_an_error_of_the_file_system_is_told_and_ends_nothing(number: int, tmp_path: Path) -> None:
    with _control() as (control, agent):
        with disk.telling(control, tmp_path):
            _fail(number)
        cause = _said(agent).cause
    assert cause.startswith("BFT-1342: ")
    assert os.strerror(number) in cause
    assert str(tmp_path) in cause


def test_a_write_that_does_not_end_is_told_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "SLOW_S", 0.05)
    with _control() as (control, agent):
        with disk.telling(control, tmp_path):
            assert "has not ended" in _said(agent).cause  # it hangs until then
        with disk.telling(control, tmp_path, usual_s=1000.0):
            pass
        assert not select.select([agent], [], [], 0.0)[0], "as long as usual"


def test_what_is_told_stands_until_a_checkpoint_is_complete() -> None:
    d = Driver()
    d.form("n1", "n2")
    d.say(d.on("n1"), Unsaved(cause="BFT-1342: No space left."))
    assert d.machine.checkpoints.not_saved == "BFT-1342: No space left."
    saved = protocol.Saved(generation=1, step=3, samples=30, path="/c", wall_s=0.1)
    d.machine.handle(stimuli.WorkerMessage(worker_id=d.on("n1"), message=saved), d.now_s)
    assert d.machine.checkpoints.not_saved == ""


def test_a_temporary_file_is_of_this_host_and_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts that share a directory have the same process ids."""
    assert own_name() == f"{os.uname().nodename}-{os.getpid()}"
    renamed: list[str] = []

    def rename(path: Path, target: Path) -> None:
        renamed.append(path.name)
        os.rename(path, target)  # noqa: PTH104 - as it was

    monkeypatch.setattr(Path, "rename", rename)
    write_whole(tmp_path / "state", [b"x"])
    assert renamed == [f".state.{own_name()}.tmp"]


# ---- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_what_cannot_be_read_for_a_while_is_read_then(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "PAUSE_S", 0.0)
    troubles = [OSError(number, os.strerror(number))] * 3

    def read() -> str:
        if troubles:
            raise troubles.pop()
        return "the state"

    assert patiently(read, tmp_path) == "the state"
    assert caplog.text.count("BFT-1343") == 1


def test_a_training_does_not_begin_anew_because_its_checkpoint_cannot_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE_S", 0.0)
    monkeypatch.setattr("bftrainer.ground.files.newest_first", lambda _where: _fail(errno.ESTALE))
    with pytest.raises(ElasticError) as caught:
        checkpoint.find(tmp_path, (7,))
    assert caught.value.code == "BFT-1343"


def test_other_errors_are_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(PermissionError):
        patiently(lambda: _fail(errno.EACCES), tmp_path)
