"""A training whose state has a given size, for ``bench_state``.

Argument: bytes of parameters and momentum together, in MB. Notes every committed step and
when, one file per worker. Environment: BENCH_STEPS (a directory).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

WIDTH = 512


def main() -> None:
    """Train until cancelled."""
    floats = int(sys.argv[1]) * 1_000_000 // 8  # four bytes each, and as many of momentum
    layers = max(1, floats // (WIDTH * WIDTH))
    torch.manual_seed(7)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    data = TensorDataset(torch.randn(4096, WIDTH), torch.randn(4096, WIDTH))
    run = elastic.Run(model, optimizer, DataLoader(data, batch_size=32), epochs=10**9)
    path = Path(os.environ["BENCH_STEPS"]) / f"{os.getpid()}.txt"
    with path.open("w", buffering=1) as steps:
        for _ in run.epochs():
            for x, y in run.batches():
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                if run.step():
                    steps.write(f"{run.step_count} {time.monotonic()}\n")


main()
