"""A script as people sweep one: its arguments are its rates, its length and its schedule."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--decay", type=float, default=0.0)
parser.add_argument("--schedule", choices=["none", "cosine", "step"], default="none")
parser.add_argument("--horizon", type=int, default=10)
a = parser.parse_args()
torch.manual_seed(0)
x = torch.randn(120, 8)
y = x[:, :1] * x[:, 1:2]
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9, weight_decay=a.decay)
schedules = torch.optim.lr_scheduler
scheduler: schedules.LRScheduler | None = None
if a.schedule == "cosine":
    scheduler = schedules.CosineAnnealingLR(optimizer, a.horizon)
elif a.schedule == "step":
    scheduler = schedules.StepLR(optimizer, 1, 0.5)
loader = DataLoader(TensorDataset(x[:100], y[:100]), batch_size=20, shuffle=True)
run = elastic.Run(model, optimizer, loader, scheduler=scheduler, epochs=a.epochs)
rates = []
for _ in run.epochs():
    for inputs, targets in run.batches():
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), targets).backward()
        run.step()
    rates.append(optimizer.param_groups[0]["lr"])
    if scheduler is not None:
        scheduler.step()
with torch.no_grad():
    loss = functional.mse_loss(model(x[100:]), y[100:]).item()
result = {
    "loss": loss,
    "rates": rates,
    "steps": run.step_count,
    "decay": optimizer.param_groups[0]["weight_decay"],
}
(Path(os.environ["BFT_TEST_DIR"]) / "result.json").write_text(json.dumps(result))
