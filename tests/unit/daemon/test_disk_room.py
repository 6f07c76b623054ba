"""A disk that becomes full is told of before it is full, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftrainer.daemon.disk_room import LOOK_EVERY_S, DiskRoom

GB = 1_000_000_000


class Disk:
    def __init__(self, size_gb: float, free_gb: float) -> None:
        self.size_gb, self.free_gb, self.is_away, self.looks = size_gb, free_gb, False, 0
        self.now_s = 100.0
        self.room = DiskRoom(Path("/state"), self.measure)

    def measure(self, _directory: Path) -> tuple[int, int]:
        self.looks += 1
        if self.is_away:
            raise OSError("gone")
        return int(self.size_gb * GB), int(self.free_gb * GB)

    def sentence(self, free_gb: float) -> str:
        self.free_gb = free_gb
        self.now_s += LOOK_EVERY_S
        self.room.look(self.now_s)
        return self.room.sentence()


def test_little_room_is_told_once_until_there_is_room_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk(20.0, 9.0)
    assert disk.sentence(9.0) == ""
    assert "BFT-2230" in disk.sentence(1.9)
    assert "1.8 of 20.0 GB are left" in disk.sentence(1.8)
    assert disk.sentence(2.1), "a little more is not yet enough"
    assert [record.message[:8] for record in caplog.records] == ["BFT-2230"]
    assert disk.sentence(2.3) == ""
    assert disk.sentence(1.0)
    assert len([r for r in caplog.records if r.message.startswith("BFT-2230")]) == 2


def test_of_a_large_disk_few_percent_are_room_enough() -> None:
    disk = Disk(1000.0, 20.0)
    assert disk.sentence(6.0) == ""
    assert disk.sentence(4.9)


def test_a_disk_that_cannot_be_measured_is_looked_at_again_later() -> None:
    disk = Disk(20.0, 9.0)
    disk.is_away = True
    assert disk.sentence(1.0) == ""
    assert disk.room.size_bytes == 0
    disk.is_away = False
    disk.room.look(disk.now_s + 1.0)
    assert disk.looks == 1, "not every second"
    assert disk.sentence(1.0)
    disk.room.look(disk.now_s - 1e6)
    assert disk.looks == 3, "a clock that is set back stops nothing"
