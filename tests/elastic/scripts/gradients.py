"""Five steps of a case in which gradients are not the ordinary ones."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

case = sys.argv[1]
torch.manual_seed(1)
features = torch.randn(37, 6)
targets = torch.randn(37, 1)
if case == "nan":
    # 37 samples in batches of 9: in the last batch of 1, rank 1 of 2 has none.
    features = features.abs()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(6, 5)
        self.sometimes = nn.Linear(5, 5)
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> Any:
        h = torch.tanh(self.used(x))
        mask = x[:, :1] > 1.2
        if case == "unused" and bool(mask.any()):
            h = h + mask * self.sometimes(h)  # some workers use it in a step, others do not
        elif case != "unused":
            h = h + self.sometimes(h)
        return self.head(h)


net = Net()
if case == "frozen":
    net.used.requires_grad_(False)  # noqa: FBT003
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
run = elastic.Run(
    net, optimizer, DataLoader(TensorDataset(features, targets), batch_size=9), epochs=2
)
for _ in run.epochs():
    for x, y in run.batches():
        optimizer.zero_grad(set_to_none=case != "restless")
        if case == "nosync":
            with run.no_sync():
                (0.5 * nn.functional.mse_loss(net(x), y)).backward()
            (0.5 * nn.functional.mse_loss(net(x), y)).backward()
        else:
            nn.functional.mse_loss(net(x), y).backward()
        if case == "clip":
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        if case == "nan" and run.rank == 1:
            for p in net.parameters():
                if p.grad is not None and run.rehearsing:
                    p.grad.fill_(float("nan"))
        run.step()

if run.is_first:
    result = {
        "parameters": [p.detach().flatten().tolist() for p in net.parameters()],
        "without_gradient": [n for n, p in net.named_parameters() if p.grad is None],
    }
    (Path(os.environ["BFT_TEST_DIR"]) / "result.json").write_text(json.dumps(result))
