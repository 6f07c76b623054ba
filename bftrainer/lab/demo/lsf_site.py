"""The demonstration's site on a stand-in of LSF: its commands, its queues, its preemption.

The nodes are process groups on this machine, as on the embedded batch system, but the daemon talks
to LSF's commands and is told of jobs by lsb.events.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bftrainer.batch import process
from bftrainer.batch.local.workload import JobWorkload, WorkItem
from bftrainer.lab.demo.local_site import DemoSite, HasEnded
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.cluster import Snapshot
from lsf_adapters.adapter import create
from lsf_adapters.testcluster import LsfConfig, LsfTestCluster, Parameters

# Preempted pilots are told (docs/howto/lsf-site.md).
_PARAMETERS = Parameters(sequential_signal=True)


class LsfSite(DemoSite):
    """A stand-in of LSF, a daemon, and ordinary jobs; agents import torch for themselves."""

    def __init__(self, cluster: LsfTestCluster, sidecar: DaemonProcess) -> None:
        super().__init__(sidecar)
        self.n_nodes = len(cluster.node_names)
        self._cluster, self._system = cluster, create(cluster.config.batch_options())
        self._coming: list[WorkItem] = []
        self._began_s = 0.0
        self._submitted_s: dict[str, float] = {}
        self._plain: list[subprocess.Popen[bytes]] = []

    def look(self) -> Snapshot:
        """Submit the ordinary jobs that are due, and poll."""
        while self._coming and time.monotonic() - self._began_s >= self._coming[0].at_s:
            job = self._coming.pop(0)
            at_s = time.time()
            job_id = self._cluster.submit(
                n_nodes=job.n_nodes, duration_s=job.duration_s, limit_s=60.0
            )
            self._submitted_s[job_id] = at_s
        return self._system.snapshot()

    def start_workload(self, workload: JobWorkload) -> None:
        """Begin to submit ordinary jobs; ``look`` does so."""
        self._coming, self._began_s = list(workload.jobs), time.monotonic()

    def run_plain(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, /
    ) -> HasEnded:
        """Start a script in a process of its own."""
        with log.open("ab") as out:
            child = process.spawn(
                (sys.executable, *argv), env={**os.environ, **environment}, stdout=out, stderr=out
            )
        self._plain.append(child)

        def has_ended(wait_s: float) -> bool:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(wait_s)
            return child.returncode is not None

        return has_ended

    def delays_s(self) -> tuple[float, ...]:
        """Return how long each ordinary job waited, LSF's own dispatch included."""
        delays = []
        for job_id, submitted_s in self._submitted_s.items():
            started_s = self._cluster.started_s(job_id)
            if started_s is not None:
                delays.append(max(0.0, started_s - submitted_s))
        return tuple(delays)

    def close(self) -> None:
        """End the scripts that still run."""
        for child in self._plain:
            child.kill()
            child.wait()


@contextlib.contextmanager
def lsf_site(scratch: Path, *, n_nodes: int, policy: str) -> Iterator[LsfSite]:
    """Start stand-in and daemon below ``scratch``; at the end the daemon stops first.

    Raises:
        BftError: one of them does not start.
    """
    scratch.chmod(0o755)  # ordinary jobs run as another user if we are root
    config = LsfConfig(directory=scratch / "lsf", n_nodes=n_nodes, parameters=_PARAMETERS)
    with (
        LsfTestCluster(config) as cluster,
        DaemonProcess(
            scratch / "state",
            batch_system="lsf",
            batch_options=config.batch_options(),
            policy=policy,
        ) as sidecar,
        contextlib.closing(LsfSite(cluster, sidecar)) as site,
    ):
        yield site
