"""What others put in place of a file is refused, in words, without a wait."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bftrainer.ground import regular_file
from bftrainer.ground.regular_file import (
    ANY_OWNER,
    check_directory,
    open_file,
    open_log,
    open_stream,
    read_file,
    why,
)

NOBODY = 65534
by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


def _socket(path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))


def _linked(path: Path) -> None:
    (path.parent / "precious").write_bytes(b"mine")
    path.symlink_to("precious")


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "it is not a regular file"),
    "socket": (_socket, "it is not a regular file"),
    "directory": (Path.mkdir, "it is not a regular file"),
    "link": (_linked, "it is a symbolic link"),
    "link to nothing": (lambda path: path.symlink_to("absent"), "it is a symbolic link"),
    "link to a device": (lambda path: path.symlink_to("/dev/zero"), "it is a symbolic link"),
}
OPENERS: dict[str, Callable[[Path], object]] = {
    "read": lambda path: read_file(path, 10),
    "append": lambda path: open_stream(path, "ab").close(),
    "log": lambda path: os.close(open_log(str(path))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opener", OPENERS)
def test_what_is_no_regular_file_is_refused(kind: str, opener: str, tmp_path: Path) -> None:
    make, reason = KINDS[kind]
    make(tmp_path / "it")
    with pytest.raises(OSError) as refused:  # noqa: PT011 - its words are what counts
        OPENERS[opener](tmp_path / "it")
    assert refused.value.strerror == reason
    precious = tmp_path / "precious"
    assert not precious.exists() or precious.read_bytes() == b"mine"


def test_a_pipe_that_somebody_reads_is_refused_as_a_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "it")
    reader = os.open(tmp_path / "it", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="not a regular file"):
        open_log(str(tmp_path / "it"))
    os.close(reader)


def test_a_device_is_refused() -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_file("/dev/zero", 10, is_typed=True)


def test_the_bound_is_the_caller_s(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"0123456789")
    assert read_file(tmp_path / "it", 10) == b"0123456789"
    with pytest.raises(OSError, match="longer than 9 bytes"):
        read_file(tmp_path / "it", 9)


def test_a_path_that_the_user_typed_may_be_a_link(tmp_path: Path) -> None:
    _linked(tmp_path / "it")
    assert read_file(tmp_path / "it", 10, is_typed=True) == b"mine"


def test_descriptors_wait_and_are_not_inherited(tmp_path: Path) -> None:
    log = open_log(str(tmp_path / "logs" / "it"))
    assert os.get_blocking(log)
    assert not os.get_inheritable(log)
    os.close(log)


def test_the_reason_names_the_file(tmp_path: Path) -> None:
    _linked(tmp_path / "it")
    with pytest.raises(OSError, match="link") as refused:
        read_file(tmp_path / "it", 10)
    assert why(refused.value) == f"{tmp_path / 'it'}: it is a symbolic link"


@by_root
@pytest.mark.parametrize("opener", OPENERS)
def test_another_user_s_file_is_refused_unless_all_owners_are_trusted(
    opener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "it").write_bytes(b"theirs")
    os.chown(tmp_path / "it", NOBODY, -1)
    with pytest.raises(PermissionError) as refused:
        OPENERS[opener](tmp_path / "it")
    assert refused.value.strerror == f"it belongs to another user (uid {NOBODY})"
    os.close(open_file(tmp_path / "it", owner_uid=NOBODY))
    monkeypatch.setenv(ANY_OWNER, "1")
    OPENERS[opener](tmp_path / "it")


@by_root
def test_directories_and_links_to_them_have_owners_too(tmp_path: Path) -> None:
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    own.mkdir()
    theirs.mkdir()
    (tmp_path / "link").symlink_to("own")
    (tmp_path / "away").symlink_to("theirs")
    (tmp_path / "lure").symlink_to("own")
    os.chown(theirs, NOBODY, -1)
    os.lchown(tmp_path / "lure", NOBODY, -1)
    check_directory(own)
    check_directory(tmp_path / "link")
    for name in ("theirs", "away", "lure"):
        with pytest.raises(PermissionError, match="another user"):
            check_directory(tmp_path / name)


@by_root
def test_a_log_is_not_written_below_another_user_s_directory_or_a_link(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "logs").symlink_to("own")
    with pytest.raises(OSError, match="logs"):
        open_log(str(tmp_path / "logs" / "it"))
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", NOBODY, -1)
    with pytest.raises(PermissionError, match="another user"):
        open_log(str(tmp_path / "theirs" / "it"))
    assert list((tmp_path / "own").iterdir()) == []


def test_root_is_trusted_by_all() -> None:
    assert regular_file.read_file("/etc/passwd", 1 << 20)
