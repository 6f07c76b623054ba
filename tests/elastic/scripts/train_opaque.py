"""A loss that torch's graph does not show, summed over the batch; NaN from an update on."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

nan_from = int(sys.argv[1])  # 0: never
torch.manual_seed(3)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)


class SumOfSquares(torch.autograd.Function):
    """One node of the graph."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2.0 * x * grad


run = elastic.Run(model, optimizer, DataLoader(data, batch_size=8), epochs=2)
for _ in run.epochs():
    for x, y in run.batches():
        optimizer.zero_grad()
        loss = SumOfSquares.apply(model(x) - y)  # type: ignore[no-untyped-call]
        if nan_from and run.step_count + 1 >= nan_from:
            loss = loss * math.nan
        loss.backward()
        run.step()
