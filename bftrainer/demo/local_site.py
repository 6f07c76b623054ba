"""A context manager for a local batch system with a daemon.

Used by the demonstration, tests and benchmarks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from bftrainer.demo.sidecar import DaemonProcess
from bftrainer.local.running import LocalServer, start_server


class LocalSite:
    """A batch system, a daemon, and a directory for trainers."""

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
                yield cls(base, server, sidecar)
            finally:
                sidecar.stop()

    def clear(self) -> None:
        """Cancel what has not ended and bring every node up."""
        for view in self.client.trainers():
            if not view.record.state.is_final:
                self.client.cancel(view.record.trainer_id, now=True)
        for node in self.client.nodes():
            self.server.client.set_node(node.name, is_up=True)
