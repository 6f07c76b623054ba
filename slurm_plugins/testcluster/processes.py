"""The processes of a test cluster: found by their environment, ended by their ids.

Used by ``cluster`` to stop a cluster, and to clean up after one left by a crash. Linux only:
everything is read from /proc.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_DAEMONS = frozenset(
    {"munged", "mariadbd", "slurmdbd", "slurmctld", "slurmscriptd", "slurmd", "slurmstepd"}
)


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    _, _, behind_name = stat.rpartition(")")
    return behind_name.split()[0] not in ("Z", "X")


def of_cluster(slurm_conf: Path, cluster_name: str, *, jobs_only: bool = False) -> frozenset[int]:
    """Find the cluster's daemons, and the processes of its jobs.

    A daemon is one of Slurm's started with our configuration; a job's process has our cluster's
    name from its node. A shell that merely has ``SLURM_CONF`` set is neither.
    """
    pids = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            name = (entry / "comm").read_text().strip()
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile, or is not ours to read
        is_daemon = name in _DAEMONS and f"SLURM_CONF={slurm_conf}".encode() in environment
        is_job = f"SLURM_CLUSTER_NAME={cluster_name}".encode() in environment
        if (is_job and name not in _DAEMONS) or (is_daemon and not jobs_only):
            pids.add(int(entry.name))
    return frozenset(filter(is_alive, pids))


def from_pid_file(path: Path, name: str) -> int | None:
    """Read a pid file; ``None``: that process is gone, or the id belongs to another by now."""
    try:
        pid = int(path.read_text())
        command = Path(f"/proc/{pid}/comm").read_text().strip()
    except (OSError, ValueError):
        return None
    if command != name or not is_alive(pid):
        return None
    return pid


def end(pids: Iterable[int], *, patience_s: float) -> None:
    """Ask processes to end, wait, and kill those that have not ended."""
    present = _signal(pids, signal.SIGTERM)
    if not wait_gone(present, patience_s):
        wait_gone(_signal(present, signal.SIGKILL), 5.0)


def kill(pids: Iterable[int]) -> None:
    """Kill processes and wait until they are gone."""
    wait_gone(_signal(pids, signal.SIGKILL), 5.0)


def wait_gone(pids: Iterable[int], timeout_s: float) -> bool:
    """Wait until none of them runs; return whether that happened in time."""
    deadline_s = time.monotonic() + timeout_s
    alive = list(filter(is_alive, pids))
    while alive and time.monotonic() < deadline_s:
        time.sleep(0.02)
        alive = list(filter(is_alive, alive))
    return not alive


def _signal(pids: Iterable[int], number: signal.Signals) -> list[int]:
    """Send a signal; return the processes that were still there."""
    present = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        present.append(pid)
    return present
