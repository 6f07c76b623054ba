"""One daemon per state directory, and only on a disk of its own host."""

from __future__ import annotations

import os
import selectors
import socket
import sys
from pathlib import Path

import pytest

from bftrainer.batch.process import kill_group, spawn
from bftrainer.journal import InstanceLock
from bftrainer.journal.lock import filesystem_type, refuse_shared_filesystem
from bftrainer.model.errors import BftError, ExitCode

HOLDER = """
import sys, time
from pathlib import Path
from bftrainer.journal import InstanceLock
lock = InstanceLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""
MOUNTS = r"""/dev/sda / ext4 rw 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/ada/scratch tmpfs rw 0 0
mgs:/work /lustre/work lustre rw 0 0
/dev/sdb /with\040space xfs rw 0 0
/dev/sdc /twice xfs rw 0 0
fs1 /twice gpfs rw 0 0
nonsense
"""


def test_a_second_daemon_is_told_who_the_first_is(tmp_path: Path) -> None:
    state = tmp_path / "state"
    reader, writer = os.pipe()
    try:
        child = spawn([sys.executable, "-c", HOLDER, str(state)], stdout=writer)
    finally:
        os.close(writer)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(reader, selectors.EVENT_READ)
            assert selector.select(60), "the holder did not answer"
        assert os.read(reader, 4) == b"held"
        with pytest.raises(BftError) as caught:
            InstanceLock.acquire(state)
        assert caught.value.code == "BFT-1102"
        assert caught.value.exit_code is ExitCode.ALREADY_RUNNING
        assert f"process {child.pid} on {socket.gethostname()}" in caught.value.cause
    finally:
        kill_group(child.pid)
        child.wait()
        os.close(reader)
    with InstanceLock.acquire(state) as lock:  # the dead leave no lock behind
        assert str(os.getpid()) in lock.path.read_text()


def test_the_lock_can_be_given_back_and_taken_again(tmp_path: Path) -> None:
    lock = InstanceLock.acquire(tmp_path)
    with pytest.raises(BftError, match="BFT-1102"):
        InstanceLock.acquire(tmp_path)
    lock.release()
    lock.release()
    with InstanceLock.acquire(tmp_path):
        pass
    assert (tmp_path / "daemon.lock").stat().st_mode & 0o777 == 0o600


def test_a_holder_without_a_name_is_still_a_holder(tmp_path: Path) -> None:
    with InstanceLock.acquire(tmp_path) as lock:
        lock.path.write_text("{")
        with pytest.raises(BftError, match="has not written its name"):
            InstanceLock.acquire(tmp_path)


def test_a_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keep")
    (tmp_path / "daemon.lock").symlink_to(victim)
    with pytest.raises(BftError, match="BFT-2212"):
        InstanceLock.acquire(tmp_path)
    assert victim.read_text() == "keep"


def test_a_state_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(BftError, match="BFT-2212"):
        InstanceLock.acquire(tmp_path / "state")


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/var/lib/bftrainer", "ext4"),
        ("/home/ada/state", "nfs4"),
        ("/home/ada/scratch/state", "tmpfs"),
        ("/home/adam", "nfs4"),
        ("/lustre/work/x", "lustre"),
        ("/lustre/workspace", "ext4"),
        ("/with space/x", "xfs"),
        ("/twice/x", "gpfs"),
    ],
)
def test_the_longest_mount_point_tells_the_file_system(directory: str, kind: str) -> None:
    assert filesystem_type(Path(directory), MOUNTS) == kind


def test_shared_file_systems_are_refused_with_the_way_out(tmp_path: Path) -> None:
    for directory in ("/home/ada/state", "/lustre/work/x", "/twice/x"):
        with pytest.raises(BftError) as caught:
            refuse_shared_filesystem(Path(directory), MOUNTS)
        assert caught.value.code == "BFT-2204"
        assert "local disk" in caught.value.next_step
    refuse_shared_filesystem(Path("/var/lib/bftrainer"), MOUNTS)


def test_a_link_to_a_shared_file_system_is_followed(tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to("/home/ada/state")
    with pytest.raises(BftError, match="nfs4"):
        refuse_shared_filesystem(tmp_path / "state", MOUNTS)


def test_this_machine_says_what_the_root_is_on() -> None:
    assert filesystem_type(Path("/proc")) == "proc"
