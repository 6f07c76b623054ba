"""A script that gathers over torch's default process group; the argument says how."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

case = sys.argv[1]
torch.manual_seed(0)
layers: list[nn.Module] = [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)]
model: nn.Module = nn.Sequential(*layers)
if case == "layer":
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
if case in ("gather", "reduce", "functional", "metric in a group", "outside"):
    store: Any = dist.HashStore()  # type: ignore[attr-defined]  # not in its stubs
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
if case == "outside":
    dist.all_reduce(torch.ones(1))


def others(x: torch.Tensor) -> torch.Tensor:
    """Return the embeddings of all workers, as contrastive losses do."""
    if case == "gather":
        from torch.distributed.nn.functional import all_gather

        return torch.cat(all_gather(x))
    if case == "functional":
        from torch.distributed._functional_collectives import all_gather_tensor

        world: Any = dist.group.WORLD  # None for the type checker
        return all_gather_tensor(x, 0, world)
    if case == "no group":
        parts = [torch.empty_like(x)]
        dist.all_gather(parts, x)
        return torch.cat(parts)
    if case == "asks" and dist.is_initialized():
        raise RuntimeError("it is not")
    if case == "reduce":
        dist.all_reduce(x.detach().mean())
    if case.startswith("metric"):
        import torchmetrics

        metric = torchmetrics.MeanMetric()
        metric.update(x.detach())
        metric.compute()
    return x


optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8)
run = elastic.Run(model, optimizer, loader, epochs=2)
for _ in run.epochs():
    for (x,) in run.batches():
        optimizer.zero_grad()
        z = model(x)
        loss: torch.Tensor = (z @ others(z).t()).logsumexp(1).mean()
        loss.backward()
        run.step()
if case == "outside":
    dist.all_reduce(torch.ones(1))
sys.stdout.write(f"trained {run.step_count}\n")
