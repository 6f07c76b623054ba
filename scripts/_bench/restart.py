"""The same transitions by checkpoint and restart: save, stop everybody, start, load.

Plain DistributedDataParallel at a fixed size per start. A planned change is told to
rank 0, which saves after its step; a loss goes back to the last snapshot. Called by
``bench_rescale``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from _bench import rival
from _bench.rival import SNAPSHOT_STEPS, TIMEOUT_S, Rival, RivalError, RivalPause
from bftrainer.batch import process

SAVE: Final = signal.SIGUSR1  # what rank 0 saves and ends at


class Restart(Rival):
    """One training, started anew at every change."""

    name = "checkpoint and restart"

    def __init__(
        self, directory: Path, script: Path, model: str, note: Callable[[str], None]
    ) -> None:
        super().__init__(directory, script, model, note)
        self._snapshot = directory / "snapshot.pt"

    def cycle(self) -> list[RivalPause]:
        """Go through all transitions once."""
        self._snapshot.unlink(missing_ok=True)
        self.fresh_records(f"cycle{next(self.jobs)}")
        self._start(1)
        self._await(1)
        pauses = [
            self._change("1->2", 1, 2),
            self._change("2->4", 2, 4),
            self._change("SIGKILL", 4, 3),
            self._change("rank 0 leaves", 3, 2),
        ]
        self._change("", 2, 4)
        pauses.append(self._change("4->2", 4, 2))
        self.end()
        return pauses

    def _change(self, kind: str, before: int, size: int) -> RivalPause:
        old = self.newest("r0")
        last_s = time.monotonic()
        is_kill = kind == "SIGKILL"
        ended = self.processes[f"r{next(self.victims) % before}" if is_kill else "r0"]
        ended.send_signal(signal.SIGKILL if is_kill else SAVE)
        try:
            ended.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RivalError(f"rank 0 did not save and end; see {self.directory}") from None
        self.recorder.poll()
        done = old.steps[-1].step if old is not None else 0
        if old is not None and not is_kill:
            last_s = old.steps[-1].at_s
        self.end()
        self._start(size)
        self._await(size)
        first = [h.steps[0] for n in self.processes if (h := self.newest(n)) is not None]
        pause_s = max(s.at_s for s in first) - last_s - self.usual_step_s(self.processes)
        lost = max(0, done + 1 - first[0].step)
        return RivalPause(system=self.name, kind=kind, pause_s=pause_s, lost_steps=lost)

    def _await(self, size: int) -> None:
        if not self.wait(lambda: self.is_settled(size), time.monotonic() + TIMEOUT_S):
            raise RivalError(f"no training at size {size} after a restart; see {self.directory}")

    def _start(self, size: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        for rank in range(size):
            environment = {
                **os.environ,
                **rival.ENVIRONMENT,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "BENCH_NODE": f"r{rank}",
                "BENCH_RECORDS": str(self.recorder.directory),
                "BENCH_SNAPSHOT": str(self._snapshot),
                "BENCH_SNAPSHOT_STEPS": str(SNAPSHOT_STEPS),
            }
            argv = [sys.executable, str(self.script), self.model]
            with (self.directory / f"r{rank}.log").open("ab") as log:
                self.processes[f"r{rank}"] = process.spawn(
                    argv, env=environment, stdout=log, stderr=log
                )
