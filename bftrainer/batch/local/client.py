"""Client of the local batch system's server; one connection per request.

Used by the adapter, the demo and the tests. Answers are plain data (see ``views``).
"""

from __future__ import annotations

import getpass
import json
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bftrainer.batch.local.workload import JobWorkload, workload_to_json
from bftrainer.model.errors import BatchSystemError

ANSWER_TIMEOUT_S = 2.0


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
            ) from problem
        if not is_ok:
            raise BatchSystemError(
                str(answer.get("code")), str(answer.get("cause")), str(answer.get("next_step"))
            )
        return dict(answer)

    def _exchange(self, line: bytes) -> bytes:
        deadline_s = time.monotonic() + self._timeout_s
        answer = bytearray()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout_s)
            connection.connect(str(self.socket_path))
            connection.sendall(line)
            while not answer.endswith(b"\n"):
                # One deadline for the whole answer, however it trickles in.
                connection.settimeout(max(0.001, deadline_s - time.monotonic()))
                chunk = connection.recv(1 << 16)
                if not chunk:
                    raise EOFError("connection closed")
                answer += chunk
        return bytes(answer)

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
        program = list(argv) if duration_s is None else ["sleep", f"{duration_s:.3f}"]
        answer = self.request("submit", user=user, n_nodes=n_nodes, limit_s=limit_s, argv=program)
        return str(answer["job_id"])

    def launch(
        self,
        *,
        pilot_id: str,
        node: str,
        limit_s: float,
        argv: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str],
    ) -> str:
        """Submit a pilot and return its job id."""
        answer = self.request(
            "launch",
            user=getpass.getuser(),
            pilot_id=pilot_id,
            node=node,
            limit_s=limit_s,
            argv=list(argv),
            log_path=str(log_path),
            environment=dict(environment),
        )
        return str(answer["job_id"])

    def cancel(
        self, job_ids: Sequence[str], *, is_force: bool = False, pilots_only: bool = False
    ) -> None:
        """Cancel jobs; unknown ids are ignored."""
        self.request("cancel", job_ids=list(job_ids), force=is_force, pilots_only=pilots_only)

    def snapshot(self) -> dict[str, Any]:
        """Nodes, queue and last scheduler pass."""
        return self.request("snapshot")

    def pilots(self, job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Phase, node, start and reason of each id; phase "" when it is not there."""
        return dict(self.request("pilots", job_ids=list(job_ids))["pilots"])

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
