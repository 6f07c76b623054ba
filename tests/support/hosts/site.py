"""The hosts as the site of the tests that every runtime must pass: Slurm, and a daemon of root."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Self, cast

from bftrainer.api.client import Client
from bftrainer.batch.local.client import LocalServer
from bftrainer.lab.demo.sidecar import DaemonProcess
from tests.support.hosts.cluster import Cluster, running_hosts
from tests.support.hosts.plan import LOGIN, USERS
from tests.support.site import Site, environment
from tests.support.waiting import wait_for

_ADDRESSES = ("--bind", "--agent-address", "127.0.0.1")  # the daemon finds its own


class HostsDaemon(DaemonProcess):
    """The daemon on a host, as a user; its state directory is shared."""

    def __init__(
        self,
        cluster: Cluster,
        state_dir: Path,
        policy: str,
        *,
        host: str = LOGIN,
        user: str = "root",
        options: Mapping[str, str] = {},
        socket: Path | None = None,
    ) -> None:
        options = {"pilot_partition": "bf", **options}
        super().__init__(state_dir, batch_system="slurm", batch_options=options, policy=policy)
        for path in (state_dir, *state_dir.iterdir()):
            os.chown(path, USERS.get(user, 0), USERS.get(user, 0))
        self._cluster, self._host, self._user = cluster, host, user
        self._words = ("--socket", str(socket)) if socket else ()
        self.client = Client(socket) if socket else self.client

    def argv(self) -> tuple[str, ...]:
        plain = (word for word in super().argv() if word not in _ADDRESSES)
        return self._cluster.argv(self._host, *plain, *self._words, user=self._user)

    def _end(self, sig: signal.Signals) -> None:
        # Our child is only the parent of the daemon, which is in the host's space of processes.
        for pid in self.pids():
            os.kill(pid, sig)
        wait_for(lambda: not self.pids(), what="the daemon ends")
        super()._end(sig)

    def pids(self) -> list[int]:
        """Return its processes, as numbered outside."""
        return self._cluster.processes(self._host, str(self.state_dir))


class _Controls:
    """What the tests do to the embedded batch system, done to hosts."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._off = cluster, set[str]()

    def set_node(self, node: str, *, is_up: bool) -> None:
        """Cut the power until Slurm has noticed, or switch it on."""
        if is_up and node in self._off:
            self._cluster.on(node)
            self._off.remove(node)
        elif not is_up:
            self._cluster.off(node)
            self._off.add(node)
            shown = ("sinfo", "-hN", "-n", node, "-pbatch", "-o%T")
            wait_for(lambda: "down" in self._cluster.does(LOGIN, *shown), what=f"{node} is down")

    def submit(self, *, n_nodes: int, limit_s: float, duration_s: float, **_: str) -> None:
        """Submit an ordinary job; of bob, whoever was named."""
        limit = f"-t{max(1, round(limit_s / 60))}"
        size = ("-pbatch", f"-N{n_nodes}", "--exclusive", limit, "-o/dev/null")
        self._cluster.does(LOGIN, "sbatch", *size, f"--wrap=sleep {duration_s}", user="bob")


class HostsSite(Site):
    """What trainers do there."""

    def __init__(self, base: Path, cluster: Cluster, sidecar: DaemonProcess) -> None:
        self.base, self.cluster, self.sidecar = base, cluster, sidecar
        self.n_nodes, self.client = cluster.plan.n_nodes, sidecar.client
        self.server = cast("LocalServer", SimpleNamespace(client=_Controls(cluster)))

    @classmethod
    @contextlib.contextmanager
    def run(cls, base: Path, policy: str) -> Iterator[Self]:
        """Start hosts and a daemon; all below ``base`` is shared."""
        settings = {"n_nodes": 3, "slurm": ("SlurmdTimeout=10",), "shared": (str(base),)}
        with running_hosts(**settings) as cluster:
            sidecar = HostsDaemon(cluster, base / "state", policy)
            try:
                sidecar.start()
                yield cls(base, cluster, sidecar)
            finally:
                sidecar.stop()

    def pids_on(self, node: str) -> list[int]:
        mark = b"SLURM_JOB_ID="
        return [
            pid
            for pid in self.cluster.processes(node)
            if any(one.startswith(mark) for one in environment(Path(f"/proc/{pid}")))
        ]
