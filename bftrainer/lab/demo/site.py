"""What the demonstration needs of a site: a batch system, a daemon, ordinary jobs.

Implemented by ``local_site`` (the embedded batch system) and ``lsf_site`` (a stand-in of LSF).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bftrainer.api.client import Client
from bftrainer.batch.local.workload import JobWorkload
from bftrainer.lab.demo.reference import PlainRun
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.cluster import Snapshot


class DemoSite(Protocol):
    """A site on this machine."""

    n_nodes: int
    client: Client
    sidecar: DaemonProcess

    def await_ready(self) -> None:
        """Wait until trainers would start without delay."""

    def look(self) -> Snapshot:
        """Poll the batch system."""

    def start_workload(self, workload: JobWorkload) -> None:
        """Begin to submit ordinary jobs at their times."""

    def run_plain(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, /
    ) -> PlainRun:
        """Start a script without bftrainer."""

    def delays_s(self) -> tuple[float, ...]:
        """Return how much later each ordinary job started than without bftrainer, at most."""
