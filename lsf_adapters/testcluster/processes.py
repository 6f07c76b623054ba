"""The processes of a stand-in cluster: found in /proc, ended by their ids. Linux only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_ROUNDS = 20


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def _ids() -> list[int]:
    return [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]


def of_server(directory: Path) -> frozenset[int]:
    """Find the server of a cluster by its arguments."""
    wanted = [b"lsf_adapters.testcluster.server", os.fsencode(directory)]
    found = set()
    for pid in _ids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[-3:-1] == wanted and is_alive(pid):
            found.add(pid)
    return frozenset(found)


def of_jobs(conf: Path) -> frozenset[int]:
    """Find the processes of a cluster's jobs: they have its LSF_ENVDIR and a job id."""
    here = b"LSF_ENVDIR=" + os.fsencode(conf)
    found = set()
    for pid in _ids():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile, or is not ours to read
        is_job = here in variables and any(one.startswith(b"LSB_JOBID=") for one in variables)
        if is_job and pid != os.getpid() and is_alive(pid):
            found.add(pid)
    return frozenset(found)


def end(pids: Iterable[int], *, patience_s: float) -> None:
    """Ask processes to end, wait, and kill those that have not ended."""
    asked = list(pids)
    _signal(asked, signal.SIGTERM)
    _signal(asked, signal.SIGCONT)
    if not _wait_gone(asked, patience_s):
        kill(asked)


def kill(pids: Iterable[int]) -> None:
    """Kill processes and wait until they are gone."""
    left = list(pids)
    _signal(left, signal.SIGKILL)
    _wait_gone(left, 5.0)


def kill_all(find: Callable[[], Iterable[int]]) -> None:
    """Kill whatever is found until nothing is: a process may have made another meanwhile."""
    for _ in range(_ROUNDS):
        found = list(find())
        if not found:
            return
        kill(found)


def _wait_gone(pids: Iterable[int], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    left = [pid for pid in pids if is_alive(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = [pid for pid in left if is_alive(pid)]
    return not left


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
