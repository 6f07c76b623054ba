"""What the training scripts of ``bench_rescale`` share: models, data, records, gate.

Two models: ``big`` with 25 M parameters and momentum (200 MB of state) and ``small``
with about 10 k. Each committed step is appended to a file on tmpfs, which survives
the SIGKILL of its writer.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

RECORD = struct.Struct("<dqiiii")  # monotonic s, step, generation, size, rank, reserved


class Task:
    """One of the two models with its data and its global batch."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(7)
        width, depth, self.batch, samples = {
            "big": (2048, 6, 16, 4096),
            "small": (68, 2, 64, 65536),
        }[name]
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.model = nn.Sequential(*layers, nn.Linear(width, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.loss = nn.CrossEntropyLoss()
        features = torch.randn(samples, width)
        self.dataset = TensorDataset(features, torch.randint(0, 10, (samples,)))


class Records:
    """Appends one record per committed step."""

    def __init__(self) -> None:
        node = os.environ.get("BENCH_NODE", "node")
        path = Path(os.environ["BENCH_RECORDS"]) / f"{node}-{os.getpid()}.steps"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, step: int, generation: int, size: int, rank: int) -> None:
        """Note that this step is committed now."""
        os.write(self._fd, RECORD.pack(time.monotonic(), step, generation, size, rank, 0))


class Gate:
    """Lets a loop run in blocks of steps on demand, and times each step.

    While the gate is closed the process waits in a read and costs nothing.
    """

    def __init__(self, arm: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ["BENCH_GATE"])
        self._lines = self._socket.makefile("r")
        self._say({"arm": arm, "rank": rank})
        self._left = 0
        self._times: list[float] = []

    def pass_step(self) -> None:
        """Call at the start of every step; blocks between blocks."""
        now = time.perf_counter()
        if self._left > 0:
            self._left -= 1
            self._times.append(now)
            return
        if self._times:
            times = [*self._times, now]
            self._say({"step_s": [b - a for a, b in itertools.pairwise(times)]})
        line = self._lines.readline()
        if not line:  # the benchmark is over
            os._exit(0)
        self._left = int(json.loads(line)["steps"]) - 1
        self._times = [time.perf_counter()]

    def _say(self, body: object) -> None:
        self._socket.sendall(json.dumps(body).encode() + b"\n")
