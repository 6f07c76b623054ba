"""A context manager for a local batch system with a daemon.

Used by the demonstration, tests and benchmarks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from bftrainer.batch.local.adapter import LocalBatchSystem
from bftrainer.batch.local.launch import LocalServer, start_server
from bftrainer.batch.local.replay import delays_s
from bftrainer.batch.local.workload import JobWorkload
from bftrainer.lab.demo.reference import TemplateRun
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.cluster import Snapshot


class LocalSite:
    """A batch system, a daemon, and a directory for trainers."""

    cycle_s = 0.5  # pause between two passes of the scheduler over its queue

    def __init__(self, base: Path, server: LocalServer, sidecar: DaemonProcess) -> None:
        self.base, self.server, self.sidecar = base, server, sidecar
        self.n_nodes = len(server.client.info()["nodes"])
        self.client = sidecar.client

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        base: Path,
        *,
        n_nodes: int,
        policy: str,
        cycle_s: float = 0.5,
        options: Sequence[str] = (),
    ) -> Iterator[Self]:
        """Start both below ``base``; at the end the daemon stops first.

        ``cycle_s`` is the pause between two passes of the scheduler over its queue;
        ``options`` are more of the batch system.

        Raises:
            BatchSystemError: BFT-1258, the batch system does not start.
            BftError: BFT-1022, the daemon does not start.
        """
        with start_server(
            base / "local", n_nodes=n_nodes, cycle_s=cycle_s, more_options=options
        ) as server:
            sidecar = DaemonProcess(
                base / "state",
                batch_system="local",
                batch_options={"socket": str(server.socket_path)},
                policy=policy,
            )
            try:
                sidecar.start()
                site = cls(base, server, sidecar)
                site.cycle_s = cycle_s
                yield site
            finally:
                sidecar.stop()

    def await_ready(self) -> None:
        """Wait until the host's template has imported torch."""
        self.server.await_warm()

    def look(self) -> Snapshot:
        """Poll the batch system."""
        return LocalBatchSystem(self.server.client).snapshot()

    def start_workload(self, workload: JobWorkload) -> None:
        """Begin to submit ordinary jobs at their times."""
        self.server.client.start_workload(workload)

    def run_plain(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, /
    ) -> TemplateRun:
        """Start a script without bftrainer, in a copy of the host's template."""
        return TemplateRun(self.server.template_path, argv, environment, log)

    def delays_s(self) -> tuple[float, ...]:
        """How much later each ordinary job started than it would have without bftrainer."""
        client = self.server.client
        found = delays_s(
            client.history(),
            n_nodes=self.n_nodes,
            cycle_s=self.cycle_s,
            cycle_at_s=client.snapshot()["cycle"]["ended_s"] or 0.0,
        )
        return tuple(max(0.0, delay_s) for delay_s in found.values())

    def clear(self) -> None:
        """Cancel what has not ended and bring every node up."""
        for view in self.client.trainers():
            if not view.record.state.is_final:
                self.client.cancel(view.record.trainer_id, now=True)
        for node in self.client.nodes():
            self.server.client.set_node(node.name, is_up=True)
