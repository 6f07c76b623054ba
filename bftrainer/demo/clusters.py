"""The cluster of the demonstration: the interface, and the local one (``slurm`` has the other).

It runs the ordinary jobs and summarises them at the end. Called by ``run``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bftrainer.demo.summary import OrdinaryJobsSummary, background
from bftrainer.local.replay import delays_s
from bftrainer.local.running import LocalServer, start_server
from bftrainer.local.workload import JobWorkload

LOCAL_CYCLE_S = 1.0
_BY_REPLAY = (
    "start in this run minus start in a replay of the same jobs through the same scheduler "
    "without bftrainer"
)


class Cluster(Protocol):
    """Interface of a running cluster."""

    @property
    def batch_system(self) -> str:
        """Name of its adapter."""

    @property
    def batch_options(self) -> Mapping[str, str]:
        """Options of its adapter."""

    def start_workload(self) -> None:
        """Begin to submit ordinary jobs."""

    def stop_workload(self) -> None:
        """Submit no more of them."""

    def background(self) -> OrdinaryJobsSummary:
        """Sum up what the ordinary jobs saw."""


@dataclass(slots=True)
class LocalDemoCluster:
    """A cluster whose nodes are process groups on this machine."""

    server: LocalServer
    workload: JobWorkload
    batch_system: str = "local"

    @property
    def batch_options(self) -> Mapping[str, str]:
        """How the daemon finds it."""
        return {"socket": str(self.server.socket_path)}

    def start_workload(self) -> None:
        """Begin to submit ordinary jobs."""
        self.server.client.start_workload(self.workload)

    def stop_workload(self) -> None:
        """Submit no more of them."""
        self.server.client.start_workload(JobWorkload(items=()))

    def background(self) -> OrdinaryJobsSummary:
        """Sum up what the ordinary jobs saw."""
        client = self.server.client
        history, cycle = client.history(), client.snapshot()["cycle"]
        info = client.info()
        delays = delays_s(
            history,
            n_nodes=len(info["nodes"]),
            cycle_s=info["cycle_s"],
            cycle_at_s=cycle["ended_s"] or 0.0,
        )
        waits = {
            job["job_id"]: job["start_s"] - job["submit_s"]
            for job in history
            if job["start_s"] is not None
        }
        return background(waits, delays, _BY_REPLAY)


@contextlib.contextmanager
def local_cluster(directory: Path, n_nodes: int, workload: JobWorkload) -> Iterator[Cluster]:
    """Run a local batch system for as long as the block lasts."""
    with start_server(directory, n_nodes=n_nodes, cycle_s=LOCAL_CYCLE_S, kill_wait_s=2.0) as server:
        yield LocalDemoCluster(server=server, workload=workload)
