"""The same transitions under elastic torchrun, as well tuned as its settings allow.

One torchrun agent per "node", on loopback or on nodes of a network; grow by starting
another, shrink by SIGTERM of one, SIGKILL of a worker. The rendezvous store is hosted
here, so that no agent's end takes it away. What comes out are ``RivalPause``s. Called by
``bench_rescale``.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Self

from _bench import rival
from _bench.records import History, Step
from _bench.rival import MAX_NODES, SNAPSHOT_STEPS, TIMEOUT_S, Rival, RivalError, RivalPause
from bftrainer.batch import process
from tests.support.network import INSIDE, Network

# In whole seconds; each the smallest with which rounds still complete: with keep-alives
# of 2 s a busy agent is taken for dead, and both halves train on by themselves.
RENDEZVOUS = {
    "is_host": "0",
    "join_timeout": "60",
    "last_call_timeout": "1",
    "close_timeout": "1",
    "keep_alive_interval": "1",
    "keep_alive_max_attempt": "5",
}
ENVIRONMENT = {
    **rival.ENVIRONMENT,
    # Without this every growth hangs (torch 2.13): rank 0 tells the address of its store
    # in its first round only, and a newcomer waits for it in a later round's keys.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # Its store asks the name service about every connection; do not wait 5 s for it.
    "RES_OPTIONS": "timeout:1 attempts:1",
}
ARGUMENTS = (
    f"--nnodes=1:{MAX_NODES}",
    "--nproc-per-node=1",
    "--rdzv-backend=c10d",
    "--rdzv-conf=" + ",".join(f"{k}={v}" for k, v in RENDEZVOUS.items()),
    "--max-restarts=1000",
    "--monitor-interval=0.1",
    "--shutdown-timeout=1",
)
_NODES = tuple(f"n{i}" for i in range(2 * MAX_NODES))


class Torchrun(Rival):
    """One elastic torchrun job; leaving the context ends every process."""

    name = "torchrun"
    network: Network | None = None  # agents are on nodes of it

    def __enter__(self) -> Self:
        from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415 - heavy, only needed here

        self._store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # noqa: FBT003
        if self.network:
            for node in _NODES:
                self.network.add(node)
        return self

    # ---- cycles --------------------------------------------------------------------------

    def cycle(self) -> list[RivalPause]:
        """Go through all transitions once."""
        self._begin(1)
        pauses = [self._measure("1->2", lambda: self._start(1), 2)]
        pauses.append(self._measure("2->4", lambda: self._start(2), 4))
        pauses.append(self._measure("SIGKILL", self._kill_worker, 0))
        pauses.append(self._measure("4->2", lambda: self._stop(self.by_rank()[2:]), 2))
        # Back at four, without measuring.
        self._measure("2->4", lambda: self._start(2), 4)
        pauses.append(self._measure("rank 0 leaves", lambda: self._stop(self.by_rank()[:1]), 3))
        self.end()
        return pauses

    def _measure(self, kind: str, act: Callable[[], object], size: int) -> RivalPause:
        """Act and wait for training at ``size`` (0: at any) on all survivors."""
        before = {node: self.newest(node) for node in self.processes}
        self._victim = ""
        started_s = time.monotonic()
        act()
        nodes = [n for n in before if n in self.processes and n != self._victim]

        def is_back() -> bool:
            return all(_first_after(self.of(n), started_s, size) is not None for n in nodes)

        if not self.wait(is_back, started_s + TIMEOUT_S):
            self.note(f"torchrun did not recover from {kind} within {TIMEOUT_S:g} s")
            self._begin(size or MAX_NODES)
            return RivalPause(
                system=self.name, kind=kind, pause_s=TIMEOUT_S, lost_steps=0, has_recovered=False
            )
        self._settle(size or MAX_NODES)
        killed_s = started_s if kind == "SIGKILL" else None
        gaps = [_gap_s(self.of(n), started_s, killed_s, size) for n in nodes]
        pause_s = max(gaps) - self.usual_step_s(nodes)
        lost_steps = [self._lost(n, before[n], started_s, size) for n in nodes]
        return RivalPause(
            system=self.name, kind=kind, pause_s=min(pause_s, TIMEOUT_S), lost_steps=max(lost_steps)
        )

    # ---- processes -----------------------------------------------------------------------

    def _begin(self, size: int) -> None:
        """A fresh job of that size, training."""
        self.end()
        self._job = f"job{next(self.jobs)}"
        self.fresh_records(self._job)
        self._start(size)
        if not self.wait(lambda: self.is_settled(size), time.monotonic() + 3 * TIMEOUT_S):
            raise RivalError(f"torchrun does not start; see {self.directory}")

    def _start(self, count: int) -> None:
        free = [n for n in _NODES if n not in self.processes]
        for node in free[:count]:
            bind_address, store_host, device = "127.0.0.1", "127.0.0.1", "lo"
            if self.network:
                bind_address, store_host, device = (
                    self.network.address_of(node),
                    self.network.address,
                    INSIDE,
                )
            argv = [
                sys.executable, "-m", "torch.distributed.run", *ARGUMENTS,
                f"--local-addr={bind_address}", f"--rdzv-endpoint={store_host}:{self._store.port}",
                f"--rdzv-id={self._job}",
                f"--log-dir={self.directory / 'logs'}",
                str(self.script), self.model,
            ]  # fmt: skip
            environment = {
                **os.environ,
                **ENVIRONMENT,
                "GLOO_SOCKET_IFNAME": device,
                "BENCH_NODE": node,
                "BENCH_RECORDS": str(self.recorder.directory),
                "BENCH_SNAPSHOT": str(self.directory / f"{self._job}.pt"),
                "BENCH_SNAPSHOT_STEPS": str(SNAPSHOT_STEPS),
            }
            if self.network:
                argv = [*self.network.argv(node, argv)]
            with (self.directory / f"{self._job}-{node}.log").open("ab") as log:
                self.processes[node] = process.spawn(argv, env=environment, stdout=log, stderr=log)

    def _stop(self, nodes: list[str]) -> None:
        agents = [self.processes.pop(node) for node in nodes]
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        self.leavers += agents

    def _kill_worker(self) -> None:
        nodes = self.by_rank()
        self._victim = nodes[next(self.victims) % len(nodes)]
        history = self.newest(self._victim)
        if history is not None:
            os.kill(history.pid, signal.SIGKILL)

    def _settle(self, size: int) -> None:
        if not self.wait(lambda: self.is_settled(size), time.monotonic() + TIMEOUT_S):
            self.note(f"torchrun does not stay at size {size}; started afresh")
            self._begin(size)

    def _lost(self, node: str, old: History | None, started_s: float, size: int) -> int:
        first = _first_after(self.of(node), started_s, size)
        if old is None or not old.steps or first is None:
            return 0
        return max(0, old.steps[-1].step + 1 - first.step)


def _first_after(histories: list[History], started_s: float, size: int) -> Step | None:
    """Return the first step of a process that began after the event, at the new size."""
    for history in histories:
        first = history.steps[0]
        if first.at_s > started_s and size in {0, first.size}:
            return first
    return None


def _gap_s(histories: list[History], started_s: float, killed_s: float | None, size: int) -> float:
    """Return the time without training until the new size, all restarts together."""
    first = _first_after(histories, started_s, size)
    if first is None:
        raise ValueError("not back yet")
    if killed_s is not None:
        return first.at_s - killed_s
    total_s = 0.0
    for earlier, later in itertools.pairwise(histories):
        if started_s < later.steps[0].at_s <= first.at_s:
            total_s += later.steps[0].at_s - earlier.steps[-1].at_s
    return total_s
