"""A script that leaves its loop over the rehearsal, and begins another when a commit waits."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic.process import control

MOST_CALLS = 20  # of run.step(): a run that never commits ends, too

directory = Path(os.environ["BFT_TEST_DIR"])
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(12, 4), torch.randn(12, 1)), batch_size=4)
run = elastic.Run(model, optimizer, loader, epochs=1)
committed = []
for _ in run.epochs():
    for _ in run.batches():
        break
    (directory / "left").touch()
    while control.current().newest is None:
        time.sleep(0.01)
    for x, y in run.batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        committed.append(run.step())
        if len(committed) >= MOST_CALLS:
            raise SystemExit("no step was committed")
(directory / "committed.json").write_text(json.dumps(committed))
