"""A daemon on a real Slurm whose nodes are taken: what it and the verbs that talk to it cost.

``bench_use`` calls. An ordinary job has all nodes, so that trainers wait in the queue.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _bench.waiting import BenchError, wait_until
from bftrainer.batch.process import Completed
from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster

N_NODES: Final = 4
LONG_S: Final = 36_000.0
PATIENCE_S: Final = 120.0
CHANGE_S: Final = 1.0
HOUR_S: Final = 3600.0
POLICY: Final = "max_trainers_per_user: 10000\nsubmissions_per_minute_per_user: 100000\n"
OWN_TIMES: Final = slice(11, 15)  # of proc_pid_stat(5) behind the name: own and of ended children


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a command took."""

    wall_s: float
    processor_s: float  # children included
    text: str = ""  # that it printed


@contextmanager
def taken_site(scratch: Path) -> Iterator[tuple[SlurmTestCluster, DaemonProcess]]:
    """Run a cluster without a free node, and a daemon beside it."""
    config = ClusterConfig(directory=scratch / "cluster", n_nodes=N_NODES, gpus_per_node=0)
    with SlurmTestCluster(config) as cluster:
        job = cluster.submit(n_nodes=N_NODES, duration_s=LONG_S)
        wait_until(lambda: cluster.started_s(job), "a job on all nodes", patience_s=PATIENCE_S)
        daemon = DaemonProcess(
            scratch / "state",
            batch_system="slurm",
            batch_options=config.batch_options(),
            policy=POLICY,
        )
        with daemon:
            yield cluster, daemon


def cost_of(command: Callable[[], Completed]) -> Cost:
    """Run a command.

    Raises:
        BenchError: it failed.
    """
    before_s, began_s = _of_children_s(), time.monotonic()
    done = command()
    if not done.is_ok:
        raise BenchError(f"{' '.join(done.argv)}: {done.stderr.strip() or done.stdout[-500:]}")
    wall_s, used_s = time.monotonic() - began_s, _of_children_s() - before_s
    return Cost(wall_s=wall_s, processor_s=used_s, text=done.stdout)


def _of_children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def restart(daemon: DaemonProcess, n_trainers: int) -> Cost:
    """Kill the daemon, start it, and wait until it has all trainers and has decided."""
    daemon.kill()
    began_s = time.monotonic()
    daemon.start()
    wait_until(lambda: daemon.client.status().decisions, "a decision", patience_s=PATIENCE_S)
    cost = Cost(wall_s=time.monotonic() - began_s, processor_s=processor_s(daemon.pid))
    if len(daemon.client.trainers()) != n_trainers:
        raise BenchError(f"of {n_trainers} trainers {len(daemon.client.trainers())} are left")
    return cost


def processor_s_per_hour(
    daemon: DaemonProcess, span_s: float, change: Callable[[], object]
) -> float:
    """Return what the daemon and its commands use, with a change of the site once a second."""
    before_s, began_s = processor_s(daemon.pid), time.monotonic()
    for second in range(round(span_s / CHANGE_S)):
        change()
        time.sleep(max(0.0, began_s + (second + 1) * CHANGE_S - time.monotonic()))
    used_s = processor_s(daemon.pid) - before_s
    return HOUR_S * used_s / (time.monotonic() - began_s)


def processor_s(pid: int) -> float:
    """Return what a process has used, with its children that have ended."""
    _, _, behind = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")
    return sum(map(int, behind.split()[OWN_TIMES])) / os.sysconf("SC_CLK_TCK")


def changes(cluster: SlurmTestCluster) -> Iterator[None]:
    """Let a job come into the queue, then go, by turns."""
    while True:
        job = cluster.submit(n_nodes=1, duration_s=LONG_S)
        yield
        cluster.cancel(job)
        yield
