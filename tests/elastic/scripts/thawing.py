"""A script that changes its optimizer's groups while it trains.

One JSON argument: the epochs at whose beginning it adds a group, freezes the head, takes the first
group away, and puts in another layer. The last values go to ``result.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

settings = {
    "epochs": 8,
    "add_at": 3,
    "freeze_at": 5,
    "remove_at": 6,
    "replace_at": -1,
    "delay_s": 0.0,
    **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"),
}
directory = Path(os.environ["BFT_TEST_DIR"])
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)
torch.manual_seed(0)
x = torch.randn(60, 8)
y = x[:, :1] * x[:, 1:2]
body, neck, head = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 1)
model = nn.Sequential(body, nn.Tanh(), neck, nn.Tanh(), head)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
optimizer.add_param_group({"params": list(neck.parameters()), "lr": 0.05})
loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
run = elastic.Run(model, optimizer, loader, epochs=settings["epochs"])
for epoch in run.epochs():
    if epoch == settings["add_at"]:
        optimizer.add_param_group({"params": list(body.parameters()), "lr": 0.02})
        optimizer.param_groups[0]["lr"] *= 0.5
    if epoch == settings["freeze_at"]:
        neck.requires_grad_(requires_grad=False)
    if epoch == settings["remove_at"]:
        del optimizer.param_groups[1]
    if epoch == settings["replace_at"]:
        model[4] = nn.Linear(12, 1)
    for a, b in run.batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        time.sleep(settings["delay_s"])
        if run.step():
            done = {"kind": "commit", "step": run.step_count, "epoch": run.epoch}
            journal.write(json.dumps(done) + "\n")
            while (directory / "hold").exists():  # not where a joiner rehearses
                time.sleep(0.02)
result = {
    "parameters": [p.flatten().tolist() for p in model.parameters()],
    "rates": [group["lr"] for group in optimizer.param_groups],
    "trained": [p.requires_grad for p in model.parameters()],
}
(directory / "result.json").write_text(json.dumps(result))
