"""Starts and stops the local batch system as a child process.

Called by the demo and the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bftrainer.batch.local.client import LocalClient
from bftrainer.batch.local.server import SOCKET_NAME, TEMPLATE_SOCKET_NAME
from bftrainer.batch.process import spawn
from bftrainer.model.errors import BatchSystemError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0


class LocalServer:
    """A running server; it ends with ``stop`` or with this process."""

    def __init__(self, directory: Path, child: subprocess.Popen[bytes], lifeline: int) -> None:
        self.directory = directory
        self.socket_path = directory / SOCKET_NAME
        self.template_path = directory / TEMPLATE_SOCKET_NAME
        self.client = LocalClient(self.socket_path)
        self._child = child
        self._lifeline = lifeline

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._child.pid

    def is_running(self) -> bool:
        """Whether the server process lives."""
        return self._child.poll() is None

    def await_warm(self) -> None:
        """Wait until the template of a server started with ``--warm`` serves agents.

        Raises:
            BatchSystemError: BFT-1258, it does not.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.template_path.exists():
            if time.monotonic() > deadline:
                raise BatchSystemError(
                    "BFT-1258",
                    f"The modules of --warm were not imported in {START_TIMEOUT_S:.0f} s.",
                    f"Read {self.directory / 'template.log'}.",
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server and all it runs; safe if it has already ended."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        try:
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start_server(
    directory: Path,
    *,
    n_nodes: int = 8,
    gpus: int = 0,
    cycle_s: float = 1.0,
    kill_wait_s: float = 10.0,
    workload: Path | None = None,
    more_options: Sequence[str] = (),
) -> LocalServer:
    """Start a server in ``directory`` and wait until it answers.

    A workload waits for ``client.start_workload()``. The log is DIR/local.log.

    Raises:
        BatchSystemError: BFT-1258, it ended at once or does not answer.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, writer = os.pipe()
    argv = [sys.executable, "-m", "bftrainer.batch.local.server", "--dir", str(directory)]
    argv += ["--nodes", str(n_nodes), "--gpus", str(gpus), "--cycle-s", str(cycle_s)]
    argv += ["--kill-wait-s", str(kill_wait_s), "--lifeline-fd", str(reader)]
    if workload is not None:
        argv += ["--workload", str(workload), "--hold-workload"]
    with (directory / "local.log").open("ab") as log:
        child = spawn([*argv, *more_options], stdout=log, stderr=log, pass_fds=(reader,))
    os.close(reader)
    server = LocalServer(directory.absolute(), child, writer)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.is_running():
        if server.socket_path.exists() and _answers(server):
            return server
        time.sleep(0.02)
    server.stop()
    last_words = (directory / "local.log").read_text(encoding="utf-8").strip().splitlines()[-1:]
    raise BatchSystemError(
        "BFT-1258",
        f"The local batch system did not start in {directory}: "
        f"{last_words[0] if last_words else 'no message'}",
        f"Read {directory / 'local.log'}.",
    )


def _answers(server: LocalServer) -> bool:
    """Whether this server answers, not an earlier one of the same directory."""
    try:
        return int(server.client.info()["pid"]) == server.pid
    except BatchSystemError:
        return False
