"""A journal on a file system that hosts share: one process at a time, no shared memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from bftrainer.journal import lock
from bftrainer.journal.journal import Journal
from bftrainer.journal.lock import InstanceLock
from bftrainer.model.errors import BftError

_WRITER = """
import sys, time
from pathlib import Path
from bftrainer.journal import lock
lock._MOUNTS = Path(sys.argv[2])
from bftrainer.journal.journal import Journal
journal = Journal.open(sys.argv[1], clock=time.time)
journal.begin_incarnation()
journal.append("test", {"number": 1})
print("written", flush=True)
time.sleep(600)
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the test's directory be on NFS, as far as /proc/mounts tells."""
    path = tmp_path / "mounts"
    path.write_text(f"/dev/a / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(lock, "_MOUNTS", path)
    return path


@pytest.fixture
def writer(tmp_path: Path, mounts: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the journal open."""
    out = tmp_path / "out"
    argv = (sys.executable, "-c", _WRITER, str(tmp_path / "journal.db"), str(mounts))
    with out.open("wb") as stream:
        child = process.spawn(argv, stdout=stream, stderr=stream)
    try:
        deadline = time.monotonic() + 30
        while "written" not in out.read_text():
            assert time.monotonic() < deadline, out.read_text()
            assert child.poll() is None, out.read_text()
            time.sleep(0.02)
        yield child
    finally:
        child.kill()
        child.wait()


def _numbers(path: Path) -> list[object]:
    journal = Journal.open(path, clock=time.time)
    try:
        return [entry.payload["number"] for entry in journal.entries("test")]
    finally:
        journal.close()


def test_a_shared_state_directory_must_be_asked_for(tmp_path: Path, mounts: Path) -> None:
    assert mounts.exists()
    with pytest.raises(BftError, match="BFT-2204"):
        InstanceLock.acquire(tmp_path / "state")
    with (
        InstanceLock.acquire(tmp_path / "state", may_be_shared=True),
        pytest.raises(BftError, match="BFT-1102"),
    ):
        InstanceLock.acquire(tmp_path / "state", may_be_shared=True)


def test_only_one_process_has_it_open_and_no_memory_is_shared(
    tmp_path: Path, writer: subprocess.Popen[bytes]
) -> None:
    assert writer.poll() is None
    assert not list(tmp_path.glob("*-shm"))
    with pytest.raises(BftError, match="Another process holds the journal"):
        _numbers(tmp_path / "journal.db")


def test_what_a_killed_process_wrote_is_there(
    tmp_path: Path, writer: subprocess.Popen[bytes]
) -> None:
    writer.kill()
    writer.wait()
    assert _numbers(tmp_path / "journal.db") == [1]
    assert not list(tmp_path.glob("*-shm"))
