"""Starts and stops a daemon in a separate process.

Called by the demonstration and by the tests. The daemon ends with the thread that started it, at
the latest.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Self

from bftrainer.api.client import Client
from bftrainer.batch import process
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import JournalEntry
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.views import StatusView

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class DaemonProcess:
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
        self.out = state_dir / "daemon.out"
        self._policy = state_dir / "policy.yaml"
        self._policy.write_text(policy)
        self._policy.chmod(0o600)
        self._system = ["--batch-system", batch_system]
        for key, value in batch_options.items():
            self._system += ["--batch-option", f"{key}={value}"]
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Client(state_dir / "daemon.sock")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def argv(self) -> tuple[str, ...]:
        """Return the command line."""
        # The kernel stops the daemon when we die, however we die.
        setpriv = shutil.which("setpriv")
        prefix: tuple[str, ...] = ()
        if setpriv:
            prefix = (setpriv, "--pdeathsig", "TERM", "--")
        return (
            *prefix,
            *process.own_python("bftrainer.cli.main", "daemon"),
            *("--state-dir", str(self.state_dir)),
            *("--policy", str(self._policy)),
            *("--bind", "127.0.0.1", "--agent-address", "127.0.0.1"),
            *("--log-file", str(self.log)),
            *self._system,
        )

    def start(self, *, is_cancelled: Callable[[], bool] = lambda: False) -> StatusView:
        """Start it and wait until it answers.

        Raises:
            BftError: BFT-1022, it ended, or does not answer in time.
        """
        with self.out.open("ab") as out:
            self._process = process.spawn(
                self.argv(),
                env={**os.environ, **self._environment},
                cwd=Path("/"),
                stdout=out,
                stderr=out,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.is_running() and not is_cancelled():
            try:
                return self.client.status()
            except BftError:
                time.sleep(0.05)  # not yet
        self.stop()
        lines = self.out.read_text(errors="replace").strip().splitlines()
        message = lines[-1] if lines else "no message"
        raise BftError(
            "BFT-1022",
            f"The daemon did not start in {self.state_dir}: {message}",
            f"Read {self.out} and {self.log}.",
            exit_code=ExitCode.DAEMON_UNREACHABLE,
        )

    def is_running(self) -> bool:
        """Return whether the daemon's process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the running daemon."""
        if self._process is None:
            raise RuntimeError("the daemon was not started")
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL the daemon."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: the daemon stops, trainers and pilots go on. Harmless when it ended."""
        self._end(signal.SIGTERM)

    def _end(self, sig: signal.Signals) -> None:
        child, self._process = self._process, None
        if child is None:
            return
        if child.poll() is None:
            child.send_signal(sig)
        try:
            child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise

    def entries(self, kind: str | None = None, after_seq: int = 0) -> list[JournalEntry]:
        """Read the journal, beside the running daemon or afterwards."""
        path = self.state_dir / "journal.db"
        with closing(Journal.open(path, clock=time.time, is_verified=False)) as journal:
            return list(journal.entries(kind, after_seq))
