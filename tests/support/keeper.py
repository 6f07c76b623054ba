"""A keeper of runtime ``command`` as a real process, driven as an agent drives it.

A program's text and a contract come in; what the keeper says, its exit and its log go
out. For tests of one keeper each; the conformance tests have a daemon and agents.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from bftrainer.batch import process
from bftrainer.ground import protocol
from tests.support.waiting import wait_for

T = TypeVar("T", bound=protocol.Message)
ENDED_S = 60.0
# What others know reaches it when this process gets to run, not within its usual second.
PATIENT = """\
import runpy
from trainers.command import keeper
keeper.NEWS_PATIENCE_S = 30.0
runpy.run_module("trainers.command", run_name="__main__")
"""


class KeeperProcess:
    """One worker of runtime ``command``; killed with its group at the end."""

    def __init__(
        self,
        directory: Path,
        text: str,
        *,
        worker_id: str = "t1-1-1",
        interval_s: float = 600.0,
        samples: int | None = None,
        has_log: bool = True,
        **contract: object,
    ) -> None:
        self.directory = directory
        self.worker_id = worker_id
        self.log_path = directory / f"{worker_id}.log"
        script = directory / "program.py"
        script.write_text(text)
        self.checkpoints = directory / "checkpoints"
        self.checkpoints.mkdir(exist_ok=True)
        config = protocol.WorkerConfig(
            trainer_id="t1",
            worker_id=worker_id,
            node=f"node-of-{worker_id}",
            script=sys.executable,
            args=(str(script),),
            cwd=str(directory),
            log_path=str(self.log_path) if has_log else "",
            checkpoint_dir=str(self.checkpoints),
            checkpoint_interval_s=interval_s,
            samples=samples,
        )
        usual = {
            "launch": "every", "stop_signal": "USR1", "save_signal": "none", "saved_status": 85,
            "grace_s": 20.0, "run": "t1@1.0",
        }  # fmt: skip
        orders = {"config": protocol.to_body(config), "options": {**usual, **contract}}
        self.socket, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-I", "-c", PATIENT, str(theirs.fileno())]
            self.child: subprocess.Popen[bytes] = process.spawn(argv, pass_fds=(theirs.fileno(),))
        self.socket.settimeout(0)
        self.socket.sendall(json.dumps(orders).encode() + b"\n")
        self._unread = b""
        self.heard: list[protocol.Message] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process.kill_group(self.child.pid)
        self.child.wait()
        self.socket.close()

    def tell(self, message: protocol.ToWorker) -> None:
        self.socket.sendall(protocol.encode(message))

    def start(self, generation: int, *others: str, rank: int = 0) -> protocol.Ready:
        """Put it into a generation with others, at its rank."""
        first = rank == 0
        self.tell(protocol.Prepare(generation=generation, attempt=1, open_store=first))
        ready = self.wait(protocol.Ready)
        names = [*others[:rank], self.worker_id, *others[rank:]]
        members = tuple(
            protocol.Member(worker_id=n, rank=r, node=f"node-of-{n}", address="127.0.0.1")
            for r, n in enumerate(names)
        )
        self.tell(
            protocol.Commit(
                generation=generation,
                attempt=1,
                token="t",  # noqa: S106 - no secret
                members=members,
                store_host="127.0.0.1",
                store_port=ready.store_port,
            )
        )
        return ready

    def stop(self, *, abandon: bool = False) -> None:
        """End its generation."""
        self.tell(
            protocol.Commit(generation=99, attempt=1, token="t", members=(), abandon=abandon)  # noqa: S106
        )

    def wait(self, kind: type[T]) -> T:
        """Return the newest message of a kind."""

        def found() -> T | None:
            self._read()
            return next((m for m in reversed(self.heard) if isinstance(m, kind)), None)

        return wait_for(found, timeout_s=ENDED_S, interval_s=0.02, what=kind.__name__)

    def said(self, kind: type[T]) -> list[T]:
        self._read()
        return [m for m in self.heard if isinstance(m, kind)]

    def ended(self) -> int:
        """Wait for its end and kill what it leaves, as the agent does."""
        status = self.child.wait(ENDED_S)
        process.kill_group(self.child.pid)
        self._read()
        return status

    def log_has(self, words: str) -> str:
        """Wait until the log holds these words; return it."""
        return wait_for(
            lambda: text if words in (text := self.log()) else None,
            interval_s=0.02,
            what=f"{words!r} in the log",
        )

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def _read(self) -> None:
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except (BlockingIOError, ConnectionResetError):
                return
            if not data:
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            self.heard += [protocol.decode(line) for line in lines]
