"""A real daemon in its own process, for tests; and what its journal says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bftrainer import process
from bftrainer.api.client import Client
from bftrainer.api.service import StatusView
from bftrainer.errors import BftError
from bftrainer.journal.journal import Journal
from bftrainer.journal.records import JournalEntry
from tests.support.waiting import wait_for


class Sidecar:
    """``bftrainer daemon`` on a state directory; may be killed and started again."""

    def __init__(
        self,
        state_dir: Path,
        *,
        batch_system: str,
        batch_options: Mapping[str, str],
        policy: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.state_dir = state_dir
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log = state_dir / "daemon.log"
        self._policy = state_dir / "policy.yaml"
        self._policy.write_text(policy)
        self._policy.chmod(0o600)
        self._system = ["--batch-system", batch_system]
        for key, value in batch_options.items():
            self._system += ["--batch-option", f"{key}={value}"]
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Client(state_dir / "daemon.sock")

    def argv(self) -> Sequence[str]:
        """Return the command line."""
        return [
            sys.executable,
            "-m",
            "bftrainer.cli.main",
            "daemon",
            "--state-dir",
            str(self.state_dir),
            "--policy",
            str(self._policy),
            "--agent-address",
            "127.0.0.1",
            "--log-file",
            str(self.log),
            *self._system,
        ]

    def start(self) -> StatusView:
        """Start it and wait until it answers."""
        with (self.state_dir / "daemon.out").open("ab") as out:
            self._process = process.spawn(
                self.argv(), env={**os.environ, **self._environment}, stdout=out, stderr=out
            )
        return wait_for(self._answers, timeout_s=30, what="the daemon answers")

    def _answers(self) -> StatusView | None:
        if self._process is not None and self._process.poll() is not None:
            text = (self.state_dir / "daemon.out").read_text()
            raise AssertionError(f"the daemon ended: {text}")
        try:
            return self.client.status()
        except BftError:
            return None

    @property
    def pid(self) -> int:
        """Of the running daemon."""
        if self._process is None:
            raise AssertionError("not started")
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: no goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: the daemon stops, trainers and pilots go on."""
        self._end(signal.SIGTERM)

    def _end(self, sig: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(sig)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
            raise
        finally:
            self._process = None

    def entries(self, kind: str | None = None) -> list[JournalEntry]:
        """Read the journal beside the running daemon."""
        journal = Journal.open(str(self.state_dir / "journal.db"), clock=time.time)
        try:
            return list(journal.entries(kind))
        finally:
            journal.close()
