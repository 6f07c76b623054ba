"""What ``bench_runtimes`` measures on: our control plane with one runtime, or ``horovodrun``.

A workload and a model come in; something that can be resized goes out (``Bed``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from _bench.plane import LEASE_S, Plane, descendants
from _bench.runtime_cycles import LARGE, SMALL
from bftrainer.batch import process
from bftrainer.fleet.runtimes.base import load_runtime
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import CheckpointContract
from bftrainer.site.policy.model import SitePolicy
from trainers.agent.start import KEEP_FREED_MEMORY

WORKLOADS: Final = Path(__file__).resolve().parents[1] / "workloads"

END_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One runtime with its training."""

    runtime: str
    script: Path
    models: tuple[str, ...] = ("small",)
    needs: str = ""  # a module that has to be installed
    program: tuple[str, ...] = ()  # any command: it starts the script
    environment: tuple[tuple[str, str], ...] = ()
    contract: CheckpointContract | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """How it is called in the table."""
        return self.label or self.runtime

    def missing(self) -> str:
        """Why it cannot be measured here; "" when it can."""
        if self.runtime:
            try:
                load_runtime(self.runtime)
            except UsageError:
                return "no such runtime is installed"
        if self.needs and find_spec(self.needs) is None:
            return f"{self.needs} is not installed"
        return "" if self.script.exists() else f"there is no {self.script.name}"


@dataclass(slots=True, kw_only=True)
class PlaneBed:
    """One trainer on three agents."""

    plane: Plane

    @classmethod
    def of(cls, arm: Arm, model: str, directory: Path, records: Path) -> PlaneBed:
        """Return a bed for one arm; enter ``plane`` before use."""
        changes: dict[str, Any] = {"runtime": arm.runtime, "contract": arm.contract}
        if arm.program:
            program, *args = arm.program
            changes |= {"script": program, "args": (*args, str(arm.script), model)}
            changes |= {"interpreter": ""}
        environment = {"BENCH_RECORDS": str(records), **dict(arm.environment)}
        (directory / "checkpoints").mkdir()
        plane = Plane(
            directory,
            agents=LARGE,
            script=arm.script,
            model=model,
            environment=environment,
            policy=SitePolicy(
                lease_s=LEASE_S, agent_timeout_s=20.0, join_window_s=0.3, failure_budget=10_000
            ),
            changes=changes,
        )
        return cls(plane=plane)

    async def resize(self, size: int) -> None:
        """Grow or shrink; the members there are stay if they can."""
        held = [node for _, node in self.plane.members()]
        free = [n for n in self.plane.all_nodes() if n not in held]
        self.plane.set_nodes((held + free)[:size])

    async def lose_first(self) -> None:
        """Take the first member's node out of the plan."""
        self.plane.set_nodes([node for _, node in self.plane.members()[1:]])

    async def kill_one(self) -> float:
        """Kill the last member and take its node out of the plan."""
        *others, (victim, _) = self.plane.members()
        killed_s = self.plane.kill_worker(victim)
        self.plane.set_nodes([node for _, node in others])
        return killed_s

    def trouble(self) -> str:
        """Why the trainer has ended, if it has."""
        return self.plane.ended()


class Horovodrun:
    """An elastic ``horovodrun`` job on three names of this host."""

    def __init__(self, arm: Arm, model: str, directory: Path, records: Path) -> None:
        self._arm, self._model = arm, model
        self._directory, self._records = directory, records
        self._hosts_file = directory / "hosts"
        names = ("localhost", "127.0.0.1", socket.gethostname())
        self._free, self._held = list(names), list[str]()
        self._job: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str:
        """Why there can be none here."""
        if shutil.which("horovodrun") is None:
            return "horovodrun is not installed"
        with contextlib.suppress(OSError):
            if socket.gethostbyname(socket.gethostname()).startswith("127."):
                return ""
        return "this host's name is not that of a loopback address"

    async def __aenter__(self) -> Self:
        script = self._directory / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat {self._hosts_file}\n")
        script.chmod(0o755)
        self._tell(SMALL)
        argv = [
            "horovodrun", "--gloo", "--network-interface", "lo", "-np", str(SMALL),
            "--min-np", "1", "--max-np", str(LARGE), "--host-discovery-script", str(script),
            "--blacklist-cooldown-range", "1", "2",
            sys.executable, str(self._arm.script), self._model,
        ]  # fmt: skip
        environment = {"OMP_NUM_THREADS": "1", "BENCH_RECORDS": str(self._records)}
        with (self._directory / "horovodrun.log").open("ab") as log:
            self._job = process.spawn(
                argv,
                env={**os.environ, **KEEP_FREED_MEMORY, **environment},
                stdout=log,
                stderr=log,
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._job is None:
            return
        below = descendants(self._job.pid)  # each worker is in a session of its own
        self._job.terminate()  # it takes its semaphores away
        try:
            self._job.wait(END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill_group(self._job.pid)
            self._job.wait()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def resize(self, size: int) -> None:
        """Offer so many hosts; the first stay."""
        self._tell(size)

    async def lose_first(self) -> None:
        """Offer one host less, without the first."""
        self._free.append(self._held.pop(0))
        self._tell(len(self._held))

    async def kill_one(self) -> float:
        """SIGKILL the last host's worker and withdraw the host."""
        killed_s = time.monotonic()
        os.kill(self._pids()[-1], signal.SIGKILL)
        self._tell(len(self._held) - 1)
        return killed_s

    def trouble(self) -> str:
        """Whether the job has ended."""
        if self._job is None or self._job.poll() is None:
            return ""
        text = (self._directory / "horovodrun.log").read_text(errors="replace")
        return f"horovodrun ended with status {self._job.returncode}:\n{text[-800:]}"

    def _tell(self, size: int) -> None:
        while len(self._held) < size:
            self._held.append(self._free.pop(0))
        while len(self._held) > size:
            self._free.append(self._held.pop())
        fresh = self._hosts_file.with_suffix(".fresh")
        fresh.write_text("".join(f"{name}:1\n" for name in self._held))
        fresh.rename(self._hosts_file)

    def _pids(self) -> list[int]:
        """Return the workers that live, the newest last."""
        found = []
        for path in self._records.glob("*.steps"):
            pid = int(path.stem.rpartition("-")[2])
            with contextlib.suppress(OSError):
                if str(self._arm.script).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return sorted(found)
