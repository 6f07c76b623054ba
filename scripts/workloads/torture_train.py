"""The innocent trainer of ``bench_torture``: real gradients, steps that leave the machine idle."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

STEP_S = 0.25

torch.manual_seed(7)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(4800, 16), torch.randn(4800, 1))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=48, shuffle=True), epochs=10**6)
for _ in run.epochs():
    for x, y in run.batches():
        time.sleep(STEP_S)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
