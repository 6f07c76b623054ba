"""What the training scripts of ``bench_rescale`` share: models, data, gate.

Two models: ``big`` with 25 M parameters and momentum (200 MB of state) and ``small``
with about 10 k.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time

import torch
from step_records import Records
from torch import nn
from torch.utils.data import TensorDataset

__all__ = ["Gate", "Records", "Task"]


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
