"""A trainer of ``bench_nemesis``: ``nemesis_train.py NUMBER EPOCHS SAMPLE_S HURRY RESULTS``.

Its parameters are a sum over the samples of all batches, in float64: one that is left out or comes
twice changes them, at which size it trains does not. Each sample takes ``SAMPLE_S`` until the file
``HURRY`` is there. At the end rank 0 writes the parameters into a file of directory ``RESULTS``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

ROWS, COLUMNS, BATCH = 240, 8, 24
RATE = 2.0**-10

number, epochs, sample_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
hurry, results = sys.argv[4], Path(sys.argv[5])
torch.manual_seed(number)  # each trainer has samples of its own
data = TensorDataset(torch.randn(ROWS, COLUMNS, dtype=torch.float64))
model = torch.nn.Linear(COLUMNS, 1, bias=False, dtype=torch.float64)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=BATCH, shuffle=True), epochs=epochs)
for _ in run.epochs():
    for (x,) in run.batches():
        if not os.path.exists(hurry):  # noqa: PTH110 - in every step
            time.sleep(sample_s * len(x))
        optimizer.zero_grad()
        model(x).mean().backward()
        run.step()
if run.is_first:
    found = results / f"parameters-{os.uname().nodename}-{os.getpid()}-{time.time_ns()}.json"
    whole = found.with_suffix(".new")
    whole.write_text(json.dumps(model.weight.detach().flatten().tolist()))
    whole.rename(found)
