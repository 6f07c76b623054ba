"""The files of a program, copied for another trial: whole, apart from their source, or not yet."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path
from unittest import mock

import pytest

from bftrainer.api.checkpoint_files import FIRST, ChangingError, copy_newest, drop_copies
from bftrainer.model.errors import UsageError
from trainers.command.program import LINK, directory_of, take


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The directory of a program in its third generation."""
    base = tmp_path / "source"
    base.mkdir()
    take(base, run="t1", generation=2)
    (directory_of(base, 2) / "deep").mkdir()
    (directory_of(base, 2) / "deep" / "weights").write_text("2")
    (directory_of(base, 2) / "newest").symlink_to("deep/weights")
    os.mkfifo(directory_of(base, 2) / "pipe")
    take(base, run="t1", generation=3)
    return base


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.mkdir()
    return path


def _all(directory: Path) -> dict[str, tuple[int, int, int]]:
    found = ((path, path.lstat()) for path in directory.rglob("*"))
    return {
        str(path.relative_to(directory)): (one.st_ino, one.st_mtime_ns, one.st_nlink)
        for path, one in found
    }


def test_the_first_generation_finds_a_copy_that_is_its_own(source: Path, target: Path) -> None:
    before = _all(source)
    copy_newest(source, target)
    assert _all(source) == before
    shutil.rmtree(source)
    assert [path.name for path in target.iterdir()] == [FIRST]
    found = take(target, run="t2", generation=1)
    assert found == target / FIRST
    assert (found / "newest").read_text() == "2"
    assert sorted(path.name for path in found.iterdir()) == ["deep", "newest"]
    assert take(target, run="t2", generation=2).joinpath("newest").read_text() == "2"


def _while_copied(acts: Iterable[Callable[[], object]]) -> mock._patch[mock.Mock]:
    """Do one more thing with each file that is copied."""
    copy, left = shutil.copy2, iter(acts)

    def copied(path: Path, to: Path, *, follow_symlinks: bool) -> None:
        next(left, dict)()
        copy(path, to, follow_symlinks=follow_symlinks)

    return mock.patch.object(shutil, "copy2", side_effect=copied)


def test_what_changed_meanwhile_is_copied_again(source: Path, target: Path) -> None:
    with _while_copied([lambda: (source / LINK / "deep" / "weights").write_text("33")]):
        copy_newest(source, target)
    assert (target / FIRST / "newest").read_text() == "33"


def test_a_restart_of_the_program_meanwhile_does_no_harm(source: Path, target: Path) -> None:
    with _while_copied([lambda: take(source, run="t1", generation=4)]):
        copy_newest(source, target)
    assert (target / FIRST / "newest").read_text() == "2"


def test_nothing_is_left_where_a_program_writes_all_the_time(source: Path, target: Path) -> None:
    weights = source / LINK / "deep" / "weights"
    with (
        _while_copied(repeat(lambda: weights.write_text(weights.read_text() + "3"))),
        pytest.raises(ChangingError),
    ):
        copy_newest(source, target)
    assert not list(target.iterdir())


def test_nothing_is_left_where_the_disk_is_full(source: Path, target: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        mock.patch.object(shutil, "copy2", side_effect=full),
        pytest.raises(OSError, match="No space"),
    ):
        copy_newest(source, target)
    assert not list(target.iterdir())


@pytest.mark.parametrize("link", ["nothing", "nowhere"])
def test_a_program_that_wrote_nothing_is_named(tmp_path: Path, target: Path, link: str) -> None:
    silent = tmp_path / "silent"
    silent.mkdir()
    if link == "nothing":
        take(silent, run="t1", generation=1)
        (silent / LINK / "empty").mkdir()
    with pytest.raises(UsageError, match=r"BFT-1047.*silent/latest is empty"):
        copy_newest(silent, target)
    assert not list(target.iterdir())


def test_copies_of_a_killed_loop_are_removed_and_nothing_else(source: Path, target: Path) -> None:
    copy_newest(source, target)
    (target / ".copied-x" / FIRST).mkdir(parents=True)
    (target / "logs").mkdir()
    drop_copies(target)
    assert [path.name for path in target.iterdir()] == ["logs"]
    linked = target.with_name("linked")
    linked.symlink_to(source)
    (source / FIRST).mkdir()
    drop_copies(linked)
    assert (source / FIRST).is_dir()
