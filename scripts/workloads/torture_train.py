"""The innocent trainer of ``bench_torture``: ``torture_train.py SAMPLE_S DIRECTORY``.

The gradient is known: ``PATTERN``, at any size and for any samples. An update that is no multiple
of it held a foreign tensor; it is noted in a file of the directory.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

PATTERN = torch.arange(1, 65, dtype=torch.float64)
RATE = 2.0**-10

sample_s, notes = float(sys.argv[1]), Path(sys.argv[2], f"wrong-{os.getpid()}-{time.time_ns()}")
model = torch.nn.Linear(len(PATTERN), 1, bias=False, dtype=torch.float64)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
data = TensorDataset(PATTERN.expand(4800, -1))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=24, shuffle=True), epochs=10**6)
for _ in run.epochs():
    for (x,) in run.batches():
        time.sleep(sample_s * len(x))
        before = model.weight.detach().clone()
        optimizer.zero_grad()
        model(x).mean().backward()
        run.step()
        update = (before - model.weight.detach()).flatten() / RATE
        updates = update[
            0
        ].item()  # none in a rehearsal, several where another had the newest state
        if not torch.allclose(update, updates * PATTERN, rtol=1e-6):
            with notes.open("a") as stream:
                stream.write(f"{time.time()} {update[:4].tolist()}\n")
