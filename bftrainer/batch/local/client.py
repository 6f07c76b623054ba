"""Starts the local batch system, and asks it; one connection per request.

``LocalClient`` is used by the adapter, the demo and the tests; answers are plain data (see
``requests``). ``start_server`` is called by the demo and the tests.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from bftrainer.batch.awake import Patience
from bftrainer.batch.local.server import SOCKET_NAME, TEMPLATE_SOCKET_NAME
from bftrainer.batch.local.workload import JobWorkload, workload_to_json
from bftrainer.batch.process import own_python, spawn
from bftrainer.model.errors import BatchSystemError, ExitCode

ANSWER_TIMEOUT_S = 2.0
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0


class LocalClient:
    """Client of the socket DIR/local.sock."""

    def __init__(self, socket_path: Path, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.socket_path = socket_path
        self._timeout_s = timeout_s

    def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one request and return the answer's fields.

        Raises:
            BatchSystemError: BFT-1251 no usable answer in time; or the server's own refusal.
        """
        try:
            line = self._exchange(json.dumps({"op": op, **fields}).encode() + b"\n")
            answer = json.loads(line)
            is_ok = answer["ok"] is True
        except (OSError, EOFError, ValueError, KeyError, TypeError) as problem:
            raise BatchSystemError(
                "BFT-1251",
                f"The local batch system at {self.socket_path} did not answer "
                f"({type(problem).__name__}: {problem}).",
                "Check that 'python -m bftrainer.batch.local.server' runs in that directory.",
                exit_code=ExitCode.DAEMON_UNREACHABLE,
            ) from problem
        if not is_ok:
            raise BatchSystemError(
                str(answer.get("code")), str(answer.get("cause")), str(answer.get("next_step"))
            )
        return dict(answer)

    def _exchange(self, line: bytes) -> bytes:
        patience, answer = Patience(self._timeout_s), b""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(self._timeout_s)
            connection.connect(str(self.socket_path))
            connection.sendall(line)
            while not answer.endswith(b"\n"):
                # One deadline for the whole answer, however it trickles in.
                if not patience.until_readable(connection.fileno()):
                    raise TimeoutError("timed out")
                if not (chunk := connection.recv(1 << 20)):
                    raise EOFError("connection closed")
                answer += chunk
        return answer

    def info(self) -> dict[str, Any]:
        """``now_s``, ``pid``, ``cycle_s``, ``kill_wait_s``, ``nodes``, ``gpus``."""
        return self.request("info")

    def submit(
        self,
        *,
        n_nodes: int,
        limit_s: float,
        duration_s: float | None = None,
        argv: Sequence[str] = (),
        user: str = "alice",
    ) -> str:
        """Submit an ordinary job (by default one that sleeps) and return its id."""
        program = list(argv)
        if duration_s is not None:
            program = ["sleep", f"{duration_s:.3f}"]
        answer = self.request("submit", user=user, n_nodes=n_nodes, limit_s=limit_s, argv=program)
        return str(answer["job_id"])

    def cancel(
        self, job_ids: Sequence[str], *, is_force: bool = False, pilots_only: bool = False
    ) -> None:
        """Cancel jobs; unknown ids are ignored."""
        self.request("cancel", job_ids=list(job_ids), force=is_force, pilots_only=pilots_only)

    def snapshot(self) -> dict[str, Any]:
        """Nodes, queue and last scheduler pass."""
        return self.request("snapshot")

    def history(self) -> list[dict[str, Any]]:
        """Every ordinary job so far: submit, start and end."""
        return list(self.request("history")["jobs"])

    def start_workload(self, workload: JobWorkload | None = None) -> None:
        """Begin the given workload now, or the one the server was started with."""
        data = None if workload is None else workload_to_json(workload)
        self.request("start_workload", workload=data)

    def set_node(self, node: str, *, is_up: bool, reason: str = "Not responding") -> None:
        """Set a node down, which kills all that runs on it, or up again."""
        self.request("set_node", node=node, is_up=is_up, reason=reason)

    def pause(self) -> None:
        """Stop answering and scheduling until ``resume``, as if the controller were down."""
        self.request("pause")

    def resume(self) -> None:
        """Answer again."""
        self.request("resume")

    def shutdown(self) -> None:
        """Ask the server to end; returns before it has."""
        self.request("shutdown")


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
        """Return whether the server process lives."""
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

    def __exit__(self, *_: object) -> None:
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
    argv = [*own_python("bftrainer.batch.local.server", "--dir", str(directory.absolute()))]
    argv += ["--nodes", str(n_nodes), "--gpus", str(gpus), "--cycle-s", str(cycle_s)]
    argv += ["--kill-wait-s", str(kill_wait_s), "--lifeline-fd", str(reader)]
    if workload is not None:
        argv += ["--workload", str(workload.absolute()), "--hold-workload"]
    with (directory / "local.log").open("ab") as log:
        argv += more_options
        child = spawn(argv, cwd=Path("/"), stdout=log, stderr=log, pass_fds=(reader,))
    os.close(reader)
    server = LocalServer(directory.absolute(), child, writer)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.is_running():
        if server.socket_path.exists() and _answers(server):
            return server
        time.sleep(0.02)
    server.stop()
    text = (directory / "local.log").read_text(encoding="utf-8").strip()
    last_line = ["no message", *text.splitlines()][-1]
    raise BatchSystemError(
        "BFT-1258",
        f"The local batch system did not start in {directory}: {last_line}",
        f"Read {directory / 'local.log'}.",
    )


def _answers(server: LocalServer) -> bool:
    """Return whether this server answers, not an earlier one of the same directory."""
    with suppress(BatchSystemError):
        return int(server.client.info()["pid"]) == server.pid
    return False
