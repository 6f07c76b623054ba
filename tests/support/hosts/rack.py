"""What all hosts of a cluster stand in: outer namespaces that die with one process.

The rack has its own network (the switches), mounts (the hosts' disks, the shared home: tmpfs) and
processes. Its first process reads from a pipe of the test; when the test is gone, however it
ended, the pipe closes, that process ends, and the kernel ends everything in the rack.
Outside is nothing but an empty directory, the mount point.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

from bftrainer.batch import process
from bftrainer.elastic.process import worker_keeper
from tests.support.hosts.plan import USERS
from tests.support.waiting import wait_for

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMMAND_S = 60.0
_PREFIX = "bft-hosts-"
_PLACE = Path("/tmp")

# $1 the mount point; then the hosts.
_SCRIPT = """\
set -e
cd "$1"; shift
mount -t tmpfs -o mode=755 tmpfs "$PWD"; cd "$PWD"
mkdir etc disks home
mount -t tmpfs -o mode=755 tmpfs home
for host; do mkdir disks/$host; mount -t tmpfs -o mode=755 tmpfs disks/$host; done
mount -t proc proc /proc
touch ready
exec cat
"""


class HostError(Exception):
    """A command of the harness failed, or a host is not as it must be."""


class Rack:
    """The outer namespaces; started by making one."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{_owner()}-", dir=_PLACE))
        self._child = subprocess.Popen(
            ("/usr/bin/unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL",
             "--propagation=private", "sh", "-c", _SCRIPT, "rack", str(self.directory), *hosts),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, cwd="/",
            env={"PATH": PATH},
        )  # fmt: skip
        try:
            self.pid = wait_for(self._first, interval_s=0.005, what="the rack begins")
            # As processes of this machine see what only the rack has mounted.
            self.inside = Path(f"/proc/{self.pid}/root{self.directory}")
            wait_for((self.inside / "ready").exists, interval_s=0.005, what="the rack is there")
            self.home = self.inside / "home"
            for user, number in USERS.items():
                (self.home / user).mkdir(mode=0o755)
                os.chown(self.home / user, number, number)
        except BaseException:
            self.remove()
            raise

    def _first(self) -> int:
        if self._child.poll() is not None:
            raise HostError(f"unshare ended with {self._child.returncode}")
        return next(iter(worker_keeper.children(self._child.pid)), 0)

    def run(self, *argv: str, namespaces: tuple[str, ...] = ("net", "mount")) -> str:
        """Run a command of this machine in namespaces of the rack; its output."""
        return enter(self.pid, namespaces, *argv)

    def remove(self) -> None:
        """End everything in it."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()
        with contextlib.suppress(FileNotFoundError):
            self.directory.rmdir()


def enter(pid: int, namespaces: tuple[str, ...], *argv: str, stdin: str = "") -> str:
    """Run a command in namespaces of a process; its output.

    Raises:
        HostError: it failed.
    """
    kinds = (f"--{kind}" for kind in namespaces)
    full = ("nsenter", f"--target={pid}", *kinds, "--", *argv)
    done = process.run(full, timeout_s=COMMAND_S, env={"PATH": PATH}, cwd=Path("/"), stdin=stdin)
    if not done.is_ok:
        raise HostError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _owner() -> str:
    return f"{os.getpid()}-{_started(os.getpid())}"


def _started(pid: int) -> str:
    """When a process began, in clock ticks since boot: tells it from one of the same number."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def sweep() -> None:
    """Remove what clusters have left whose test was killed: as a rule, the mount point."""
    for directory in _PLACE.glob(f"{_PREFIX}*-*-*"):
        pid, started, _ = directory.name.removeprefix(_PREFIX).split("-", 2)
        if _started(int(pid)) == started:
            continue
        for rack in _racks(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rack, 9)
        with contextlib.suppress(OSError):  # another sweep was faster
            directory.rmdir()


def _racks(directory: Path) -> list[int]:
    mark = f"rack\0{directory}\0".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
