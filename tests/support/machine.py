"""A machine for a test: this one's files under systemd, in namespaces; what it writes is lost.

``Machine.boot`` needs root, systemd and overlayfs; where one is missing the test is skipped. The
end of its first process ends all of them and removes all mounts.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from tests.support.accounts import why_closed
from tests.support.own_root import KERNELS_DIRECTORIES
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
SYSTEMD = next(
    (p for p in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if Path(p).exists()), ""
)
BOOT_S, COMMAND_S = 60.0, 120.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# $1 is an empty directory; the others are directories that may be on another file system.
_BOOT = (
    """\
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"; cd "$1"; shift
mkdir upper work root
mount -t overlay overlay -o "lowerdir=/,upperdir=$PWD/upper,workdir=$PWD/work" root
for place; do
    [ "$(stat -c %d "$place")" != "$(stat -c %d /)" ] || continue
    mkdir -p "root$place"; mount --bind "$place" "root$place"; mount -o remount,bind,ro "root$place"
done
"""
    + KERNELS_DIRECTORIES
    + """\
mount -t cgroup2 cgroup2 root/sys/fs/cgroup
echo "127.0.0.1 localhost $(uname -n)" > root/etc/hosts
uname -n > root/etc/hostname
# getaddrinfo(3) with AI_ADDRCONFIG finds nothing where all addresses are of loopback.
ip link set lo up; ip address add 192.0.2.1/32 dev lo
# Services of this machine are none of the test's.
rm -rf root/etc/systemd/system root/etc/slurm; mkdir root/etc/systemd/system
mkdir -p root/etc/tmpfiles.d; ln -sf /dev/null root/etc/tmpfiles.d/tmp.conf  # keeps /tmp
for place; do
    while [ "$place" != / ]; do
        chmod o+rx "root$place" || true; place=$(dirname "$place")  # of a bound one it may not
    done
done
cd root; pivot_root . old; umount -l old
exec "$SYSTEMD" --system --unit=multi-user.target
"""
)


class Machine:
    """A booted machine."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @classmethod
    @contextlib.contextmanager
    def boot(cls, *, runs_checkout: bool = True) -> Iterator[Machine]:
        """Boot it, whether or not its services run programs of ours; it is gone at the end."""
        why = _why_not() or (runs_checkout and (_why_unseen() or why_closed()))
        if why:
            pytest.skip(why)
        with (
            tempfile.TemporaryDirectory(prefix="bft-machine-") as mount,
            tempfile.NamedTemporaryFile(prefix="bft-boot-") as log,
        ):
            child = process.spawn(
                (
                    *("unshare", "--mount", "--pid", "--fork", "--cgroup", "--uts", "--ipc"),
                    *("--net", "--kill-child", "sh", "-c", _BOOT, "boot", mount),
                    *dict.fromkeys((str(ROOT), sys.base_prefix)),
                ),
                env={"PATH": PATH, "SYSTEMD": SYSTEMD, "container": "test", "LC_ALL": "C.UTF-8"},
                stdout=log,
                stderr=log,
            )
            try:
                yield cls(_booted(child, Path(log.name)))
            finally:
                for pid in _children(child):
                    os.kill(pid, signal.SIGKILL)  # of all the others the kernel takes care
                child.wait()

    def run(
        self, command: str, *, timeout_s: float = COMMAND_S, directory: str = "/root"
    ) -> process.Completed:
        """Run a shell's line as root."""
        argv = ("nsenter", "--target", str(self._pid), "--all", f"--wd=/proc/{self._pid}/root")
        environ = {"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}
        line = f"cd {shlex.quote(directory)} && {command}"
        return process.run((*argv, "bash", "-c", line), timeout_s=timeout_s, env=environ)

    def does(self, command: str) -> str:
        """Run what must succeed; its output."""
        done = self.run(command)
        assert done.is_ok, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        self.does(f"mkdir -p $(dirname {path}) && printf %s {shlex.quote(text)} > {path}")


def _why_not() -> str:
    missing = [
        name for name in ("unshare", "nsenter", "ip", "systemctl") if shutil.which(name) is None
    ]
    if missing or not SYSTEMD:
        return f"no machine can be booted: {', '.join(missing) or 'systemd'} missing"
    if os.geteuid() != 0:
        return "no machine can be booted: not root"
    may = process.run(("unshare", "--mount", "--pid", "--fork", "--cgroup", "--net", "true"),
                      timeout_s=10)  # fmt: skip
    return "" if may.is_ok else f"no machine can be booted: {may.stderr}"


def _why_unseen() -> str:
    is_hidden = ROOT.is_relative_to("/tmp")
    return "the services of a machine do not see a checkout in /tmp (PrivateTmp=)" * is_hidden


def _children(child: subprocess.Popen[bytes]) -> list[int]:
    try:
        text = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
    except FileNotFoundError:
        return []  # it has ended
    return [int(pid) for pid in text.split()]


def _booted(child: subprocess.Popen[bytes], log: Path) -> int:
    """Return the pid of its first process when all is up; skip where it cannot come up."""

    def is_up() -> int:
        if child.poll() is not None:
            return -1
        pid = next(iter(_children(child)), 0)
        if not pid or not Path(f"/proc/{pid}/exe").readlink().match("systemd"):
            return 0
        asked = Machine(pid).run("systemctl is-system-running", timeout_s=5)
        return pid if asked.stdout.strip() in {"running", "degraded"} else 0

    pid = wait_for(is_up, timeout_s=BOOT_S, interval_s=0.2, what="the machine is up")
    if pid < 0:
        pytest.skip(f"no machine can be booted: {log.read_text()}")
    return pid
