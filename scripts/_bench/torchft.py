"""The same transitions under torchft, one replica group of one worker per node.

Its lighthouse counts heartbeats, so membership is whoever is alive: a node is added by
starting a replica and taken away by ending one, and no leave can be announced. Not a
dependency: ``why_not`` says what is missing. Called by ``bench_rescale``.
"""

from __future__ import annotations

import importlib.util
import itertools
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
from _bench.rival import MAX_NODES, TIMEOUT_S, Rival, RivalError, RivalPause
from bftrainer.batch import process

VERSION: Final = "0.2.0"  # what the settings and the workload were written for
# Shorter ones take a replica that is merely busy for dead, and both halves train on by
# themselves. The defaults are 60 s to join and 5 s without a heartbeat.
LIGHTHOUSE: Final = (
    "--min_replicas=1",
    "--quorum_tick_ms=50",
    "--join_timeout_ms=2000",
    "--heartbeat_timeout_ms=2000",
)


def why_not() -> str:
    """Return why torchft cannot be measured here, "" when it can."""
    missing = [n for n in ("torchft", "opentelemetry") if importlib.util.find_spec(n) is None]
    return f"not installed: {', '.join(missing)} (pip install torchft=={VERSION})" * bool(missing)


class Torchft(Rival):
    """One lighthouse and its replicas; leaving the context ends every process."""

    name = "torchft"

    def __init__(
        self, directory: Path, script: Path, model: str, note: Callable[[str], None]
    ) -> None:
        super().__init__(directory, script, model, note)
        self._lighthouse: subprocess.Popen[bytes] | None = None
        self._port = 0

    def cycle(self) -> list[RivalPause]:
        """Go through all transitions once."""
        self._begin(1)
        pauses = [self._measure("1->2", lambda: self._start(1), 2)]
        pauses.append(self._measure("2->4", lambda: self._start(2), 4))
        pauses.append(self._measure("SIGKILL", self._kill, 3))
        self._measure("3->4", lambda: self._start(1), 4)
        pauses.append(self._measure("4->2", lambda: self._stop(self.by_rank()[2:]), 2))
        self._measure("2->4", lambda: self._start(2), 4)
        pauses.append(self._measure("rank 0 leaves", lambda: self._stop(self.by_rank()[:1]), 3))
        self.end()
        return pauses

    def end(self) -> None:
        """End replicas and lighthouse."""
        super().end()
        if self._lighthouse is not None:
            rival.end_tree(self._lighthouse)
            self._lighthouse = None

    def _measure(self, kind: str, act: Callable[[], object], size: int) -> RivalPause:
        """Act and wait for training at ``size`` on all survivors."""
        started_s = time.monotonic()
        before = set(self.processes)
        act()
        nodes = sorted(before & set(self.processes))
        usual_s = 0.0

        def is_back() -> bool:
            return all(self.gap_s(n, started_s, size, is_kill=False) for n in nodes)

        if not self.wait(is_back, started_s + TIMEOUT_S):
            self.note(f"torchft did not recover from {kind} within {TIMEOUT_S:g} s")
            self._begin(size)
            return RivalPause(system=self.name, kind=kind, pause_s=TIMEOUT_S, has_recovered=False)
        is_kill = kind == "SIGKILL"
        gap_s = max(self.gap_s(n, started_s, size, is_kill=is_kill) for n in nodes)
        if self.wait(lambda: self.is_settled(size), time.monotonic() + TIMEOUT_S):
            usual_s = self.usual_step_s(nodes)
        else:
            self.note(f"torchft does not stay at size {size}; started afresh")
            self._begin(size)
            usual_s = self.usual_step_s(self.processes)
        return RivalPause(system=self.name, kind=kind, pause_s=gap_s - usual_s)

    def gap_s(self, node: str, started_s: float, size: int, *, is_kill: bool) -> float:
        """Return a survivor's longest gap until its second step at a size, 0 before that.

        It changes its members in one step and counts them in the next.
        """
        history = self.newest(node)
        steps = history.since(started_s) if history is not None else []
        at_size = [i for i, s in enumerate(steps) if s.size == size]
        if history is None or len(at_size) < 2:
            return 0.0
        until = len(history.steps) - len(steps) + at_size[1] + 1
        times = [s.at_s for s in history.steps[:until] if s.at_s > started_s]
        if is_kill:
            times.insert(0, started_s)
        else:
            times.insert(0, history.steps[until - len(times) - 1].at_s)
        return max(b - a for a, b in itertools.pairwise(times))

    # ---- processes -----------------------------------------------------------------------

    def _begin(self, size: int) -> None:
        """A fresh lighthouse and replicas, training."""
        self.end()
        job = f"job{next(self.jobs)}"
        self.fresh_records(job)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        argv = [
            str(Path(sys.executable).with_name("torchft_lighthouse")),
            f"--bind=127.0.0.1:{self._port}",
            *LIGHTHOUSE,
        ]
        with (self.directory / f"{job}-lighthouse.log").open("ab") as log:
            self._lighthouse = process.spawn(argv, stdout=log, stderr=log)
        self._start(size)
        if not self.wait(lambda: self.is_settled(size), time.monotonic() + 3 * TIMEOUT_S):
            raise RivalError(f"torchft does not start; see {self.directory}")

    def _start(self, count: int) -> None:
        names = map("n{}".format, range(2 * MAX_NODES))
        free = [name for name in names if name not in self.processes]
        for node in free[:count]:
            environment = {
                **os.environ,
                **rival.ENVIRONMENT,
                "BENCH_NODE": node,
                "BENCH_RECORDS": str(self.recorder.directory),
                "BENCH_LIGHTHOUSE": f"http://127.0.0.1:{self._port}",
            }
            argv = [sys.executable, str(self.script), self.model]
            with (self.directory / f"{node}.log").open("ab") as log:
                self.processes[node] = process.spawn(argv, env=environment, stdout=log, stderr=log)

    def _stop(self, nodes: list[str]) -> None:
        for node in nodes:
            self.leavers.append(self.processes.pop(node))
            self.leavers[-1].send_signal(signal.SIGTERM)

    def _kill(self) -> None:
        nodes = self.by_rank()
        victim = self.processes.pop(nodes[next(self.victims) % len(nodes)])
        victim.send_signal(signal.SIGKILL)
        self.leavers.append(victim)
