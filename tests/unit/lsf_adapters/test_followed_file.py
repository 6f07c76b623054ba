"""Files of other users that are followed: who may write them, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bftrainer.batch.tail import FollowedFile
from bftrainer.model.errors import BatchSystemError
from lsf_adapters.notifications.watch import EventsFile
from slurm_plugins.hook.watch import HookFile

ME = os.getuid()
NOBODY = 65534
needs_root = pytest.mark.skipif(ME != 0, reason="only root can give a file away")


@dataclass(frozen=True)
class Kind:
    """A kind of file, and its codes."""

    follow: Callable[[Path, int], FollowedFile]
    unread: str
    untrusted: str

    def refuses(self, path: Path, why: str, owner_uid: int = ME) -> None:
        with pytest.raises(BatchSystemError, match=why) as raised:
            self.follow(path, owner_uid)
        assert raised.value.code == self.untrusted


HOOK = Kind(lambda path, uid: HookFile(path, "bf", owner_uid=uid), "BFT-1231", "BFT-1233")
EVENTS = Kind(lambda path, uid: EventsFile(path, "bf", owner_uid=uid), "BFT-1211", "BFT-1212")
both = pytest.mark.parametrize("kind", [HOOK, EVENTS], ids=["hook", "lsb.events"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "place"
    directory.mkdir(mode=0o755)
    file = directory / "told"
    file.write_text("#\n")
    file.chmod(0o644)
    return file


@both
@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_file_that_others_may_write_is_refused(kind: Kind, path: Path, mode: int) -> None:
    path.chmod(mode)
    kind.refuses(path, "may be written by others")


@both
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_directory_that_others_may_write_is_refused(kind: Kind, path: Path, mode: int) -> None:
    path.parent.chmod(mode)
    kind.refuses(path, f"{path.parent} may be written by others")


@both
@needs_root
def test_only_the_owner_and_root_are_believed(kind: Kind, path: Path) -> None:
    os.chown(path, NOBODY, -1)
    kind.refuses(path, "belongs to nobody")
    kind.follow(path, NOBODY).close()
    os.chown(path, 0, -1)
    os.chown(path.parent, NOBODY, -1)
    kind.refuses(path, "belongs to nobody")


@needs_root
def test_the_owner_of_lsfs_directory_is_its_administrator(path: Path) -> None:
    os.chown(path.parent, NOBODY, -1)
    os.chown(path, NOBODY, -1)
    EventsFile(path, "bf").close()
    os.chown(path, 1, -1)
    with pytest.raises(BatchSystemError, match="belongs to daemon"):
        EventsFile(path, "bf")


@both
def test_a_link_and_a_pipe_are_refused(kind: Kind, path: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    path.rename(own)
    path.symlink_to(own)
    kind.refuses(path, "is a link")
    path.unlink()
    os.mkfifo(path)
    kind.refuses(path, "is not a regular file")


@both
@pytest.mark.parametrize("is_there", [True, False], ids=["no file", "no directory"])
def test_what_is_not_there_yet(kind: Kind, tmp_path: Path, *, is_there: bool) -> None:
    directory = tmp_path / "none"
    if is_there:
        directory.mkdir()
    with pytest.raises(BatchSystemError, match="cannot be read") as raised:
        kind.follow(directory / "told", ME)
    assert raised.value.code == kind.unread


def test_without_a_directory_there_is_no_administrator_of_lsf(tmp_path: Path) -> None:
    with pytest.raises(BatchSystemError, match=r"BFT-1211: .*the daemon then only polls"):
        EventsFile(tmp_path / "none" / "lsb.events", "bf")


def put_a_pipe_there(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_a_link_there(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


@both
@pytest.mark.parametrize(
    ("spoil", "is_gone"),
    [
        (lambda path: path.chmod(0o666), False),
        (lambda path: path.parent.chmod(0o777), False),
        (lambda path: path.parent.rename(path.parent.with_name("away")), True),
        (put_a_pipe_there, False),
        (put_a_link_there, False),
    ],
    ids=["file opened to all", "directory opened to all", "directory gone", "pipe", "link"],
)
def test_it_is_believed_no_longer_when_others_can_write_it(
    kind: Kind, path: Path, spoil: Callable[[Path], object], *, is_gone: bool
) -> None:
    file = kind.follow(path, ME)
    spoil(path)
    with pytest.raises(BatchSystemError) as raised:
        file.lines()
    assert raised.value.code == (kind.unread if is_gone else kind.untrusted)
    file.close()
