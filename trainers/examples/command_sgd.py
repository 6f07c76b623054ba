#!/usr/bin/env python3
"""Stochastic gradient descent in plain Python: a program for runtime ``command``.

    bftrainer submit --runtime command --nodes 1:4 -- ./command_sgd.py --steps 5000

Fits a line to synthetic points; every node processes a share of each batch. Gradients are summed
over the program's own sockets (MASTER_ADDR, MASTER_PORT). It follows the contract of
docs/howto/train-command.md with the standard library only: it loads a checkpoint, prints its
progress, saves and ends on request. The checkpoint counts every sample, which shows any sample
used twice or never.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from io import BufferedRWPair
from pathlib import Path

SAVED = 85  # "my checkpoint is written, start me again"
CONNECT_S = 20.0
RATE = 0.05
SLOPE, OFFSET = 3.0, -1.0  # the solution

signals_received: list[int] = []


@dataclass(slots=True)
class State:
    """The contents of a checkpoint."""

    step: int = 0
    samples: int = 0
    index_sum: int = 0  # of all samples used: which ones, not only how many
    weights: list[float] = field(default_factory=lambda: [0.0, 0.0])


class Star:
    """Sums numbers over all ranks; rank 0 adds, the others send and wait."""

    def __init__(self, rank: int, size: int) -> None:
        self._peers: list[BufferedRWPair] = []
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if rank == 0 and size > 1:
            with socket.create_server((host, port)) as server:
                server.settimeout(CONNECT_S)
                self._peers = [server.accept()[0].makefile("rwb") for _ in range(size - 1)]
        elif size > 1:
            self._peers = [_connect(host, port).makefile("rwb")]
        self._is_first = rank == 0

    def add_up(self, numbers: list[float]) -> list[float]:
        """Return the sums, bit-identical on all ranks."""
        if self._is_first:
            rows = [numbers, *(json.loads(_line(peer)) for peer in self._peers)]
            numbers = list(map(sum, zip(*rows, strict=True)))
        for peer in self._peers:
            peer.write(json.dumps(numbers).encode() + b"\n")
            peer.flush()
        if not self._is_first:
            numbers = json.loads(_line(self._peers[0]))
        return numbers


def _connect(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection((host, port), timeout=CONNECT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _line(peer: BufferedRWPair) -> bytes:
    if not (line := peer.readline()):
        raise ConnectionError("another rank is gone")
    return line


def load(path: Path) -> State:
    """Return the state of the checkpoint, or a fresh one."""
    if not path.exists():
        return State()
    return State(**json.loads(path.read_text()))


def save(path: Path, state: State) -> None:
    """Write a temporary file, then rename: there is a complete checkpoint at any moment."""
    fresh = path.with_suffix(".fresh")
    with fresh.open("w") as out:
        json.dump({name: getattr(state, name) for name in State.__slots__}, out)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(path)


def is_asked() -> bool:
    """Return whether a checkpoint is requested, by signal or by the control file."""
    return bool(signals_received) or "stop" in Path(os.environ["BFT_CONTROL_FILE"]).read_text()


def one_step(state: State, star: Star, rank: int, size: int, batch: int) -> bool:
    """Train on one batch; return whether any rank was asked to stop."""
    first = state.step * batch
    mine = range(first + rank, first + batch, size)
    points = [(i, (i * 7919 % 1000) / 500 - 1) for i in mine]
    slope, offset = state.weights
    errors = [slope * x + offset - SLOPE * x - OFFSET for _, x in points]
    slope_sum, offset_sum, n_samples, index_sum, n_asked = star.add_up(
        [
            sum(e * x for e, (_, x) in zip(errors, points, strict=True)),
            sum(errors),
            len(points),
            sum(i for i, _ in points),
            is_asked(),
        ]
    )
    state.weights = [slope - RATE * slope_sum / batch, offset - RATE * offset_sum / batch]
    state.step += 1
    state.samples += int(n_samples)
    state.index_sum += int(index_sum)
    return bool(n_asked)


def main() -> int:
    """Train; return the exit status."""
    parser = argparse.ArgumentParser(description="SGD in plain Python")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument(
        "--pause", type=float, default=0.0, help="more work: seconds per step, shared"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGUSR1, lambda number, _: signals_received.append(number))
    rank, size = int(os.environ["BFT_RANK"]), int(os.environ["BFT_SIZE"])
    checkpoint = Path(os.environ["BFT_CHECKPOINT_DIR"]) / "sgd.json"
    interval_s = float(os.environ["BFT_CHECKPOINT_INTERVAL_S"])
    state, star, saved_s = load(checkpoint), Star(rank, size), time.monotonic()
    print(f"rank {rank} of {size}, pid {os.getpid()}")
    print(f"BFT step={state.step} samples={state.samples}")
    steps = int(os.environ.get("BFT_SAMPLES", options.steps * options.batch)) // options.batch
    while state.step < steps:
        time.sleep(options.pause / size)
        is_stopping = one_step(state, star, rank, size, options.batch)
        print(f"BFT step={state.step} samples={state.samples}")
        if rank == 0 and (is_stopping or time.monotonic() - saved_s > interval_s):
            save(checkpoint, state)
            saved_s = time.monotonic()
        if is_stopping:
            # Another rank may have been asked first; our own signal may still come, and its
            # default action kills.
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            return SAVED
    if rank == 0:
        save(checkpoint, state)
        slope, offset = state.weights
        error = abs(slope - SLOPE) + abs(offset - OFFSET)
        print(f"BFT value={error}")
        print(f"weights {slope:.3f} {offset:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
