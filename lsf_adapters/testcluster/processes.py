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
    _, _, behind_name = text.rpartition(")")
    return behind_name.split()[0] not in ("Z", "X")


def _ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def of_server(directory: Path) -> frozenset[int]:
    """Find the server of a cluster by its arguments."""
    server_words = [b"lsf_adapters.testcluster.server", os.fsencode(directory)]
    pids = set()
    for pid in _ids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[-3:-1] == server_words and is_alive(pid):
            pids.add(pid)
    return frozenset(pids)


def of_jobs(conf: Path) -> frozenset[int]:
    """Find the processes of a cluster's jobs: they have its LSF_ENVDIR and a job id."""
    cluster_variable = b"LSF_ENVDIR=" + os.fsencode(conf)
    pids = set()
    for pid in _ids():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile, or is not ours to read
        has_job_id = any(variable.startswith(b"LSB_JOBID=") for variable in variables)
        is_job = has_job_id and cluster_variable in variables
        if is_job and pid != os.getpid() and is_alive(pid):
            pids.add(pid)
    return frozenset(pids)


def end(pids: Iterable[int], *, patience_s: float) -> None:
    """Ask processes to end, wait, and kill those that have not ended."""
    pids = list(pids)
    _signal(pids, signal.SIGTERM)
    _signal(pids, signal.SIGCONT)  # one that is stopped gets SIGTERM only when it goes on
    if not _wait_gone(pids, patience_s):
        kill(pids)


def kill(pids: Iterable[int]) -> None:
    """Kill processes and wait until they are gone."""
    pids = list(pids)
    _signal(pids, signal.SIGKILL)
    _wait_gone(pids, 5.0)


def kill_all(find: Callable[[], Iterable[int]]) -> None:
    """Kill whatever is found until nothing is: a process may have made another meanwhile."""
    for _ in range(_ROUNDS):
        pids = list(find())
        if not pids:
            return
        kill(pids)


def _wait_gone(pids: Iterable[int], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    alive = list(filter(is_alive, pids))
    while alive and time.monotonic() < deadline_s:
        time.sleep(0.01)
        alive = list(filter(is_alive, alive))
    return not alive


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
