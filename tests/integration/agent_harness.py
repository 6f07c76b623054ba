"""A small daemon around the real ``AgentServer``, and real agent processes for it.

Tests of the agent come in with a scenario; everything it started is gone when the
scenario ends, whatever its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from bftrainer.batch import process
from bftrainer.fleet.wire.endpoint import AgentConfig
from bftrainer.fleet.wire.keys import KeyPair, generate_pair, save_pair
from bftrainer.fleet.wire.messages import (
    AgentMessage,
    Hello,
    StartWorker,
    Welcome,
    WorkerExited,
    WorkerSaid,
    WorkerStarted,
)
from bftrainer.fleet.wire.server import AgentServer
from bftrainer.ground.protocol import WorkerConfig, to_body
from tests.support import torchless

T = TypeVar("T")


async def until(condition: Callable[[], T | None], what: str, timeout_s: float = 150.0) -> T:
    """Wait in the event loop until ``condition`` is truthy and return that."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.01)
    return result


class Daemon:
    """Welcomes every agent, again and again, and remembers what it hears."""

    def __init__(self, keys: KeyPair, *, incarnation: int, interpreters: list[str]) -> None:
        self.heard: list[AgentMessage] = []
        self.order: list[str] = []
        self.is_talking = True
        self.welcome = Welcome(heartbeat_s=0.1, lease_s=60.0, interpreters=interpreters)
        self.server = AgentServer(
            keys=keys,
            incarnation=incarnation,
            agent_timeout_s=60,
            on_message=self._on_message,
            on_lost=lambda _pilot, why: self.order.append(f"lost:{why}"),
        )
        self._echo: asyncio.TimerHandle | None = None

    async def start(self, port: int = 0) -> str:
        endpoint = await self.server.start("127.0.0.1", port)
        self._tick()
        return endpoint

    async def stop(self) -> None:
        if self._echo is not None:
            self._echo.cancel()
        await self.server.stop()

    def send(self, message: Any) -> None:
        assert self.server.send("p1", message)

    def of(self, kind: type[T]) -> list[T]:
        return [message for message in self.heard if isinstance(message, kind)]

    def started(self, worker_id: str) -> WorkerStarted | None:
        found = [m for m in self.of(WorkerStarted) if m.worker_id == worker_id]
        return found[-1] if found else None

    def exited(self, worker_id: str) -> WorkerExited | None:
        found = [m for m in self.of(WorkerExited) if m.worker_id == worker_id]
        return found[-1] if found else None

    def said(self, worker_id: str, kind: str) -> dict[str, Any] | None:
        bodies = [m.body for m in self.of(WorkerSaid) if m.worker_id == worker_id]
        return next((body for body in bodies if body["type"] == kind), None)

    def _on_message(self, pilot_id: str, message: AgentMessage) -> None:
        assert pilot_id == "p1"
        self.heard.append(message)
        self.order.append(message.type)
        if isinstance(message, Hello) and self.is_talking:
            self.send(self.welcome)

    def _tick(self) -> None:
        if self.is_talking and self.server.is_connected("p1"):
            self.send(self.welcome)
        self._echo = asyncio.get_running_loop().call_later(0.1, self._tick)


class Lab:
    """One daemon, one agent, and the directory of its pilot.

    Scripts that import torch name an ``interpreter`` that has it: ``sys.executable``.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.daemon_keys = generate_pair()
        self.agent_keys = generate_pair()
        self.key_file = directory / "agent.key"
        self.config_file = directory / "agent.json"
        self.daemons: list[Daemon] = []
        self.agent: subprocess.Popen[bytes] | None = None
        self.torchless = torchless.interpreter(directory)
        save_pair(self.agent_keys, self.key_file)

    async def start_daemon(
        self, *, incarnation: int = 1, port: int = 0, interpreters: tuple[str, ...] = ()
    ) -> Daemon:
        daemon = Daemon(self.daemon_keys, incarnation=incarnation, interpreters=list(interpreters))
        self.daemons.append(daemon)
        daemon.server.register("p1", self.agent_keys.public)
        self.endpoint = await daemon.start(port)
        return daemon

    def start_agent(self, **changes: Any) -> subprocess.Popen[bytes]:
        fields = {
            "pilot_id": "p1", "node": "n1", "address": "127.0.0.1", "heartbeat_s": 0.1,
            "daemon_endpoint": self.endpoint, "daemon_public_key": self.daemon_keys.public,
            "key_file": self.key_file, "state_dir": self.directory, **changes,
        }  # fmt: skip
        AgentConfig(**fields).save(self.config_file)
        argv = [sys.executable, "-I", "-m", "trainers.agent", "--config", str(self.config_file)]
        with (self.directory / "agent.log").open("ab") as log:
            self.agent = process.spawn(argv, stdout=log, stderr=log)
        return self.agent

    def log(self) -> str:
        return (self.directory / "agent.log").read_text()

    def script(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def order(self, worker_id: str, script: Path, **changes: Any) -> StartWorker:
        interpreter = changes.pop("interpreter", self.torchless)
        config = WorkerConfig(
            trainer_id="t1", worker_id=worker_id, node="n1", script=str(script),
            cwd=str(self.directory), log_path=str(self.directory / f"{worker_id}.log"), **changes,
        )  # fmt: skip
        return StartWorker(
            worker_id=worker_id, trainer_id="t1", interpreter=interpreter, config=to_body(config)
        )

    async def agent_ended(self) -> int:
        agent = self.agent
        assert agent is not None
        await until(lambda: agent.poll() is not None, "the agent has ended")
        return agent.returncode

    async def close(self) -> None:
        for daemon in self.daemons:
            await daemon.stop()
        if self.agent is not None:
            self.agent.terminate()  # takes the children of its workers along
            try:
                self.agent.wait(60)
            finally:
                self.agent.kill()
                self.agent.wait()


def in_lab(directory: Path, scenario: Callable[[Lab], Awaitable[None]]) -> None:
    """Run a scenario; print the agent's log when it fails."""

    async def main() -> None:
        lab = Lab(directory)
        try:
            await scenario(lab)
        except BaseException:
            with contextlib.suppress(OSError):
                sys.stderr.write(lab.log())
            raise
        finally:
            await lab.close()

    asyncio.run(main())


def children(pid: int) -> list[int]:
    """Return the pids of a process's children (of its main thread)."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def readable_secrets(pid: int) -> Iterator[bytes]:
    """Return what other processes can see of a process: arguments and environment."""
    for name in ("cmdline", "environ"):
        yield Path(f"/proc/{pid}/{name}").read_bytes()


def write_executable(path: Path, text: str) -> Path:
    path.write_text(text)
    os.chmod(path, 0o700)  # noqa: PTH101 - the mode is the point
    return path


async def end_of(daemon: Daemon, worker_id: str) -> WorkerExited:
    """Wait for the end of a worker."""
    return await until(lambda: daemon.exited(worker_id), f"{worker_id} has ended")
