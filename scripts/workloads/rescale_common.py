"""What the training scripts of ``bench_rescale`` share: models, data, gate, device.

Two models: ``big`` with 25 M parameters and momentum (200 MB of state) and ``small``
with about 10 k.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import socket
import time
from pathlib import Path

import torch
from step_records import Records
from torch import nn
from torch.utils.data import TensorDataset

__all__ = ["Gate", "Records", "Task", "claim_device"]


def claim_device() -> torch.device:
    """Return where BENCH_DEVICE says to train: a GPU that no other worker has, if there is one.

    A lock says whose it is; the kernel lets go of it when the worker ends, however it does.
    """
    if os.environ.get("BENCH_DEVICE", "cpu") == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    for index in range(count):
        path = Path(os.environ["BENCH_LOCKS"]) / f"gpu-{os.environ.get('BENCH_ARM', '')}-{index}"
        lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return torch.device("cuda", index)  # open for good
    if os.environ.get("BENCH_BACKEND") == "nccl":  # each as if on a host of its own: sockets
        os.environ["NCCL_HOSTID"] = str(os.getpid())
    return torch.device("cuda", os.getpid() % count)


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
        self.device = claim_device()
        self.model = nn.Sequential(*layers, nn.Linear(width, 10)).to(self.device)
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
