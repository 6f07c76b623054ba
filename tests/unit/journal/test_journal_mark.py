"""The mark of what a journal acknowledged: written in turn, read with suspicion."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bftrainer.journal.mark import SLOT_BYTES, Mark, MarkFile, decode, encode
from bftrainer.model.errors import BftError

ONE = Mark(writes=1, seq=7, sha256="a" * 64, incarnation=2, last_pilot=12, last_trainer=3)
TWO = ONE.followed_by(8, "b" * 64, incarnation=2, last_pilot=13, last_trainer=0)


def written(path: Path, *marks: Mark) -> None:
    file = MarkFile(path)
    for mark in marks:
        file.write(mark)
    file.close()


def read(path: Path) -> Mark | None:
    file = MarkFile(path)
    file.close()
    return file.mark


def test_what_was_written_last_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.mark"
    assert read(path) is None
    for count in range(1, 5):
        marks = [ONE]
        for seq in range(8, 8 + count):
            marks.append(marks[-1].followed_by(seq, "c" * 64, last_pilot=seq))
        written(path, *marks)
        assert read(path) == marks[-1]
        path.unlink()


def test_numbers_never_get_smaller() -> None:
    assert (
        Mark(writes=2, seq=8, sha256="b" * 64, incarnation=2, last_pilot=13, last_trainer=3) == TWO
    )


@pytest.mark.parametrize("written_bytes", [0, 1, 40, 200, SLOT_BYTES - 1])
def test_a_write_cut_short_leaves_the_mark_before(tmp_path: Path, written_bytes: int) -> None:
    path = tmp_path / "journal.mark"
    written(path, ONE, TWO)
    three = TWO.followed_by(9, "d" * 64)
    place = SLOT_BYTES * (three.writes % 2)
    data = bytearray(path.read_bytes())
    data[place : place + written_bytes] = encode(three)[:written_bytes]
    path.write_bytes(data)
    assert read(path) in (TWO, three)
    written(path, three.followed_by(10, "e" * 64))  # and it goes on
    assert read(path) == three.followed_by(10, "e" * 64)


def test_no_flipped_bit_makes_another_mark() -> None:
    slot = encode(ONE)
    for place in range(len(slot) * 8):
        flipped = bytearray(slot)
        flipped[place // 8] ^= 1 << place % 8
        assert decode(bytes(flipped)) in (None, ONE), place  # ONE: white space at the end


@pytest.mark.parametrize("content", [b"", b"\0" * 1024, b"garbage", encode(ONE)[:100], b"x" * 9999])
def test_a_damaged_mark_is_named_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal.mark"
    path.write_bytes(content)
    with pytest.raises(BftError) as caught:
        MarkFile(path)
    assert caught.value.code == "BFT-2214"
    assert f"mv {path} {path}.damaged" in caught.value.next_step
    assert path.read_bytes() == content


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("fifo", "directory", "link"):
        with pytest.raises(BftError, match="BFT-2214"):
            MarkFile(tmp_path / name)
