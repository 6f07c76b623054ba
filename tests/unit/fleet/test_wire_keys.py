"""Key files: private or refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from bftrainer.fleet.wire.keys import generate_pair, load_or_create_pair, load_pair, save_pair
from bftrainer.fleet.wire.private import read_private, write_private
from bftrainer.model.errors import BftError


def test_round_trip_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "agent.key"
    pair = generate_pair()
    old_umask = os.umask(0)
    try:
        save_pair(pair, path)
    finally:
        os.umask(old_umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_pair(path) == pair
    assert load_or_create_pair(path) == pair
    assert pair.secret not in repr(pair)


def test_created_once(tmp_path: Path) -> None:
    path = tmp_path / "daemon.key"
    assert load_or_create_pair(path) == load_or_create_pair(path)


def _expect_refusal(path: Path, why: str) -> None:
    with pytest.raises(BftError) as caught:
        load_pair(path)
    assert caught.value.code == "BFT-1302"
    assert why in caught.value.cause
    assert caught.value.next_step


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_accessible_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "k"
    save_pair(generate_pair(), path)
    path.chmod(mode)
    _expect_refusal(path, f"{mode:04o}")


def test_symlink_is_refused_for_reading_and_writing(tmp_path: Path) -> None:
    save_pair(generate_pair(), tmp_path / "real")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    _expect_refusal(link, "symbolic link")
    with pytest.raises(BftError, match="BFT-1302"):
        load_or_create_pair(link)
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BftError, match="BFT-1302"):
        write_private(dangling, b"x")
    assert not (tmp_path / "elsewhere").exists()


def test_fifo_directory_missing_and_existing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    _expect_refusal(tmp_path / "fifo", "not a regular file")
    (tmp_path / "dir").mkdir(mode=0o700)
    _expect_refusal(tmp_path / "dir", "not a regular file")
    _expect_refusal(tmp_path / "none", "No such file")
    write_private(tmp_path / "taken", b"1")
    with pytest.raises(BftError, match="File exists"):
        write_private(tmp_path / "taken", b"2")
    assert read_private(tmp_path / "taken") == b"1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_other_owner_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k"
    save_pair(generate_pair(), path)
    os.chown(path, 65534, 65534)
    _expect_refusal(path, "belongs to user 65534")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"public": "x"}',
        b'{"public": 1, "secret": 2}',
        b"\xff\xfe",
        b'{"public": "' + b"a" * 40 + b'", "secret": "' + b"b" * 40 + b'"}',
        b"x" * 5000,
    ],
)
def test_not_a_pair_is_refused_without_quoting_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "k"
    write_private(path, data)
    with pytest.raises(BftError) as caught:
        load_pair(path)
    assert caught.value.code == "BFT-1302"
    assert "bbbb" not in str(caught.value)


def test_a_file_that_is_too_long_is_refused_for_that(tmp_path: Path) -> None:
    path = tmp_path / "k"
    write_private(path, b"x" * 11)
    assert read_private(path, limit_bytes=11) == b"x" * 11
    with pytest.raises(BftError, match="is longer than 10 bytes"):
        read_private(path, limit_bytes=10)
