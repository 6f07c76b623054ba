"""Steady-state step time: the elastic runtime beside plain DistributedDataParallel or HSDP.

Both arms stand ready at the same size; a gate lets them run in turns, a block of
steps each, so that what disturbs the machine disturbs both. Out come the step times
by block. Called by ``rescale_parts`` and ``sharded_parts``.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from _bench import memory
from _bench.waiting import BenchError
from bftrainer.batch import process
from tests.support.plane import Plane
from trainers.agent.start import KEEP_FREED_MEMORY

ARMS = ("elastic", "plain")
START_TIMEOUT_S = 120.0
BLOCK_TIMEOUT_S = 300.0
SETTLING_STEPS = 3  # first steps of a block: the other arm's data is in the caches


_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Which scripts the arms run."""

    elastic: str
    plain: str
    per_node: int = 1
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the trainer's specification


DDP = Kind(elastic="rescale_elastic.py", plain="rescale_ddp.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Step times of both arms; block i of one ran beside block i of the other."""

    elastic: list[list[float]]
    plain: list[list[float]]
    peaks: dict[str, list[int]]  # of each arm's workers, resident bytes


class GateKeeper:
    """Serves the gates of all workers of both arms."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._workers: dict[tuple[str, int], tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[GateKeeper]:
        """Listen; at the end all gates close, and what waits at them ends."""
        server = await asyncio.start_unix_server(self._welcome, self.path)
        try:
            yield self
        finally:
            server.close()
            for _, writer in self._workers.values():
                writer.close()
            await server.wait_closed()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = json.loads(await reader.readline())
        self._workers[hello["arm"], int(hello["rank"])] = (reader, writer)

    def peaks(self, arm: str) -> list[int]:
        """Return the largest resident memory that each worker of an arm ever had, bytes."""
        workers = []
        for (name, _), (_, writer) in sorted(self._workers.items()):
            if name == arm:
                peer = writer.get_extra_info("socket")
                credentials = peer.getsockopt(
                    socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
                )
                workers.append(memory.peak_bytes(_CREDENTIALS.unpack(credentials)[0]))
        return workers

    def is_complete(self, arm: str, size: int) -> bool:
        """Whether all workers of an arm stand at their gates."""
        return all((arm, rank) in self._workers for rank in range(size))

    async def run_block(self, arm: str, steps: int) -> list[float]:
        """Let one arm run; returns the step times of its rank 0."""
        mine = [w for (name, _), w in sorted(self._workers.items()) if name == arm]
        for _, writer in mine:
            writer.write(json.dumps({"steps": steps}).encode() + b"\n")
        async with asyncio.timeout(BLOCK_TIMEOUT_S):
            answers = [json.loads(await reader.readline()) for reader, _ in mine]
        return list(map(float, answers[0]["step_s"]))


async def compare(
    directory: Path,
    workloads: Path,
    model: str,
    size: int,
    *,
    pairs: int,
    steps: int,
    note: Callable[[str], None],
    kind: Kind = DDP,
) -> Blocks:
    """Run the blocks of both arms in turns, the one that begins alternating; ``size`` workers."""
    gate = GateKeeper(directory / "gate")
    environment = {"BENCH_GATE": str(gate.path), "BENCH_SIZE": str(size)}
    times_s: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    async with gate.serving():
        plane = Plane(
            directory,
            agents=size // kind.per_node,
            script=workloads / kind.elastic,
            model=model,
            environment=environment,
            changes=kind.changes,
        )
        async with plane:
            plane.set_nodes(plane.all_nodes())
            await plane.until(
                lambda: gate.is_complete("elastic", size),
                "the elastic arm is ready",
                START_TIMEOUT_S,
            )
            with _plain(directory, workloads / kind.plain, model, size, gate.path) as plain:
                await plane.until(
                    lambda: gate.is_complete("plain", size) or plain.has_ended(),
                    "the plain arm is ready",
                    START_TIMEOUT_S,
                )
                if plain.has_ended():
                    raise BenchError(f"the plain arm ended: {plain.log_text()}")
                for pair in range(-1, pairs):  # the first one only warms up
                    for arm in ARMS if pair % 2 == 0 else reversed(ARMS):
                        times = await gate.run_block(arm, steps + SETTLING_STEPS)
                        if pair >= 0:
                            times_s[arm].append(times[SETTLING_STEPS:])
                peaks = {arm: gate.peaks(arm) for arm in ARMS}
                note(f"steady state of {model} at size {size}")
    return Blocks(elastic=times_s["elastic"], plain=times_s["plain"], peaks=peaks)


class _Plain:
    """The processes of the plain arm."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.workers: list[subprocess.Popen[bytes]] = []

    def has_ended(self) -> bool:
        return any(w.poll() is not None for w in self.workers)

    def log_text(self) -> str:
        return self.log.read_text()[-1500:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            process.kill_group(worker.pid)
            worker.wait()


def _plain(directory: Path, script: Path, model: str, size: int, gate: Path) -> _Plain:
    arm = _Plain(directory / "plain.log")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with arm.log.open("ab") as log:
        for rank in range(size):
            environment = {
                **KEEP_FREED_MEMORY,  # as our agents do: what is compared is the rest
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "BENCH_GATE": str(gate),
                "BENCH_ARM": "plain",  # both arms stand ready, on the same GPUs
            }
            argv = [sys.executable, str(script), model]
            arm.workers.append(process.spawn(argv, env=environment, stdout=log, stderr=log))
    return arm
