"""Files of the state directory: whatever is in their place gets a sentence, no traceback."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bftrainer.fleet.logs import configure_logging
from bftrainer.fleet.wire.endpoint import AgentConfig, remember, remembered_port
from bftrainer.fleet.wire.keys import load_or_create_pair
from bftrainer.fleet.wire.private import write_private
from bftrainer.journal.lock import InstanceLock, held
from bftrainer.model.errors import BftError


def _directory(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _bytes(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)
        path.chmod(0o600)

    return write


IN_ITS_PLACE = [
    pytest.param(make, id=name)
    for name, make in {
        "directory": _directory,
        "fifo": _fifo,
        "dangling link": _dangling,
        "empty": _bytes(b""),
        "half written": _bytes(b"tcp://127.0.0"),
        "no UTF-8": _bytes(b"\xff\xfe:\x80"),
        "nested": _bytes(b"[" * 4000),
        "huge": _bytes(b"tcp://127.0.0.1:" + b"1" * 1_000_000),
        "infinite": _bytes(b'{"pid": 1e999, "host": "h"}\n'),
        "beyond all ports": _bytes(b"tcp://127.0.0.1:99999"),
        "digits that are no ASCII": _bytes("tcp://127.0.0.1:\u0661".encode()),
    }.items()
]


@pytest.mark.parametrize("make", IN_ITS_PLACE)
def test_an_endpoint_that_says_nothing_costs_no_start(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "endpoint"
    make(file)
    with caplog.at_level(logging.ERROR):
        assert remembered_port(file) == 0
    assert str(file) in caplog.text
    remember(file, "tcp://127.0.0.1:4711")  # a directory stays, and is named again
    assert remembered_port(file) == (0 if file.is_dir() else 4711)


def test_an_endpoint_is_remembered(tmp_path: Path) -> None:
    assert remembered_port(tmp_path / "endpoint") == 0
    remember(tmp_path / "endpoint", "tcp://[::1]:65535")
    assert remembered_port(tmp_path / "endpoint") == 65535
    assert [file.name for file in tmp_path.iterdir()] == ["endpoint"]
    (tmp_path / "endpoint").chmod(0o644)  # as an earlier release wrote it
    assert remembered_port(tmp_path / "endpoint") == 65535


@pytest.mark.parametrize("make", IN_ITS_PLACE)
def test_keys_and_configurations_are_refused_by_name(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    file = tmp_path / "file"
    make(file)
    for load, code in ((load_or_create_pair, "BFT-1302"), (AgentConfig.load, "BFT-130[23]")):
        with pytest.raises(BftError, match=code):
            load(file)


@pytest.mark.parametrize("make", IN_ITS_PLACE)
def test_a_lock_is_held_whatever_its_file_says(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "daemon.lock")
    if (tmp_path / "daemon.lock").is_file():
        text = (tmp_path / "daemon.lock").read_bytes()
        assert "has not written its name" in held(tmp_path, text[:4096]).cause
        InstanceLock.acquire(tmp_path).release()
    else:
        with pytest.raises(BftError, match="BFT-2212"):
            InstanceLock.acquire(tmp_path)


def test_the_holder_of_a_lock_is_named(tmp_path: Path) -> None:
    with InstanceLock.acquire(tmp_path) as lock:
        assert f"process {os.getpid()} on " in held(tmp_path, lock.path.read_bytes()).cause


def test_a_key_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", _fails)
        with pytest.raises(BftError, match="BFT-1302"):
            load_or_create_pair(tmp_path / "daemon.key")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".daemon.key.new").write_bytes(b'{"pub')  # of a writer that was killed
    assert load_or_create_pair(tmp_path / "daemon.key") == load_or_create_pair(
        tmp_path / "daemon.key"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["daemon.key"]
    with pytest.raises(BftError, match="File exists"):
        write_private(tmp_path / "daemon.key", b"x")


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path, tmp_path / "file" / "daemon.log", tmp_path / "none" / "daemon.log"):
        with pytest.raises(BftError, match="BFT-2215") as caught:
            configure_logging("info", place)
        assert str(place) in caught.value.cause


def test_a_log_file_that_was_renamed_is_opened_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, place = logging.getLogger("bftrainer.rotated"), tmp_path / "log" / "daemon.log"
    place.parent.mkdir()
    root = logging.getLogger("bftrainer")
    before, handlers = root.propagate, list(root.handlers)
    configure_logging("info", place)
    try:
        log.info("one")
        place.rename(place.with_suffix(".1"))
        log.info("two")
        place.parent.rename(tmp_path / "away")
        log.info("three")  # no file can be opened there
        place.parent.mkdir()
        log.info("four")
    finally:
        for handler in [one for one in root.handlers if one not in handlers]:
            root.removeHandler(handler)
            handler.close()
        root.propagate = before
    away = tmp_path / "away"
    said = [(away / "daemon.1").read_text(), (away / "daemon.log").read_text(), place.read_text()]
    assert [text.split()[-1] for text in said] == ["one", "two", "four"]
    assert capsys.readouterr().err.split()[-1] == "three"


def _fails(*_: object) -> None:
    raise OSError(28, "No space left on device")
