"""Boots one host inside the rack: namespaces of its own, a root file system of its own.

The root is an overlay of this machine's on the host's disk, which outlives a power failure; /tmp,
/run and /dev/shm do not. The checkout and Python's installation are there, read-only.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bftrainer.batch import process
from bftrainer.elastic.process import worker_keeper
from tests.support.hosts.rack import PATH, HostError, Rack
from tests.support.own_root import KERNELS_DIRECTORIES
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]

# $1 host, $2 the rack's directory; then directories that the host sees read-only.
_SCRIPT = (
    r"""
set -e
host=$1 rack=$2; shift 2
cd "$rack/disks/$host"
mkdir -p upper work root
mount -t overlay overlay -o "lowerdir=/,upperdir=$PWD/upper,workdir=$PWD/work" root
mount -t tmpfs -o mode=1777 tmpfs root/tmp
mount --bind "$rack/home" root/home
"""
    + KERNELS_DIRECTORIES
    + r"""
if [ ! -e upper/installed ]; then
    rm -rf root/etc/slurm root/var/spool/slurm* root/var/tmp root/var/log/munge root/var/lib/munge
    mkdir -m 1777 root/var/tmp
    cp -r "$rack/etc/common/." "$rack/etc/$host/." root/etc/
    chmod go-rwx root/etc/munge/munge.key; chown -R munge: root/etc/munge
    install -d -o munge -g munge -m 700 root/var/log/munge root/var/lib/munge
    install -d -o slurm -g slurm root/var/log/slurm root/var/spool/slurmctld
    install -d root/var/spool/slurmd
    touch root/installed
fi
# Last: a checkout may lie below any of the places that are the host's own.
for place; do
    mkdir -p "root$place"; mount --bind "$place" "root$place"; mount -o remount,bind,ro "root$place"
    place=$(dirname "$place")
    while [ "$place" != / ]; do  # ordinary users pass
        chmod o+x "root$place" || true; place=$(dirname "$place")
    done
done
for place in $SHARED; do mkdir -p "root$place"; mount --bind "$place" "root$place"; done
cat /proc/sys/kernel/random/uuid > root/run/boot_id
mount --bind root/run/boot_id root/proc/sys/kernel/random/boot_id
hostname "$host"
ip link set lo up
cd root; pivot_root . old; umount -l old; rmdir old
install -d -o munge -g munge -m 755 /run/munge
touch /run/booted
exec sh -c 'sleep infinity & wait' "host-$host"
"""
)


def _seen() -> list[str]:
    """Return the directories that hosts see: none lies in another."""
    places = [ROOT, Path(sys.prefix), Path(sys.base_prefix)]
    return [
        str(one)
        for number, one in enumerate(places)
        if not any(one.is_relative_to(other) for other in places[:number])
    ]


class Booting:
    """A host that has been switched on."""

    def __init__(self, rack: Rack, host: str, shared: tuple[str, ...], up_s: int = 0) -> None:
        self._host = host
        clocks = ("--time", f"--monotonic={up_s}", f"--boottime={up_s}") if up_s else ()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by await_end
        self._child = process.spawn(
            ("nsenter", f"--target={rack.pid}", "--mount", "--pid", "--net", "--",
             "unshare", *clocks, "--net", "--uts", "--mount", "--pid", "--ipc", "--fork",
             "--kill-child=KILL", "--propagation=private",
             "sh", "-c", _SCRIPT, "boot", host, str(rack.directory), *_seen()),
            cwd=Path("/"), env={"PATH": PATH, "SHARED": " ".join(shared)},
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
        # nsenter forks into the namespace of processes, unshare into a further one.
        self.pid = wait_for(self._first, interval_s=0.005, what=f"{host} begins")

    def _first(self) -> int:
        self._insist()
        below = worker_keeper.children(self._child.pid)
        return next((pid for child in below for pid in worker_keeper.children(child)), 0)

    def _insist(self) -> None:
        if self._child.poll() is not None:
            self._log.seek(0)
            raise HostError(f"{self._host} did not boot: {self._log.read().decode()}")

    def await_end_of_boot(self) -> None:
        """Wait until the host has its file systems.

        Raises:
            HostError: it ended instead, for the reason that is named.
        """

        def has_booted() -> bool:
            self._insist()
            return Path(f"/proc/{self.pid}/root/run/booted").exists()

        wait_for(has_booted, interval_s=0.005, what=f"{self._host} boots")

    def await_end(self) -> None:
        """Wait until no process of the host is left."""
        self._child.wait()
        self._log.close()
