"""Whether this machine can run hosts."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

from bftrainer.batch import process
from tests.support.hosts.rack import PATH

_NEEDS = {
    "util-linux": ("unshare", "nsenter", "setpriv", "mount"),
    "iproute2": ("ip", "bridge", "tc"),
    "nftables": ("nft",),
    "munge": ("munged",),
    "Slurm": ("slurmctld", "slurmd", "sbatch", "sinfo"),
}
_TRY = """\
mount -t tmpfs tmpfs "$1" && cd "$1" && mkdir upper work root \
&& mount -t overlay overlay -o "lowerdir=/,upperdir=$PWD/upper,workdir=$PWD/work" root \
&& ip link add try0 type bridge && ip link add try1 type veth peer name try2 \
&& nft add table inet try
"""


@functools.cache
def why_no_clocks() -> str:
    """Return why no host can have a monotonic clock of its own, in one line; "": it can."""
    argv = ("unshare", "--time", "--monotonic=1", "--fork", "true")
    tried = process.run(argv, timeout_s=30.0, env={"PATH": PATH})
    return "" if tried.is_ok else f"no clocks of hosts' own: {' '.join(tried.stderr.split())}"


@functools.cache
def why_not() -> str:
    """Return why no hosts can run here, in one line; "": they can."""
    if os.geteuid() != 0:
        return "no hosts: not root"
    for package, programs in _NEEDS.items():
        missing = [name for name in programs if shutil.which(name, path=PATH) is None]
        if missing:
            return f"no hosts: {', '.join(missing)} of {package} is missing: make system"
    kinds = ("--net", "--uts", "--mount", "--pid", "--ipc", "--fork", "--propagation=private")
    tried = process.run(
        ("unshare", *kinds, "sh", "-c", _TRY, "try", "/mnt"),
        timeout_s=30.0,
        env={"PATH": PATH},
        cwd=Path("/"),
    )
    return "" if tried.is_ok else f"no hosts: {' '.join(tried.stderr.split())}"
