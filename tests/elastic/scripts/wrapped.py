"""A script written for DistributedDataParallel: its own process group, wrapper, sampler.

Arguments: ``plain``, ``wrapped`` (a group of this process) or ``two RANK`` (of two).
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from bftrainer import elastic

case = sys.argv[1]
directory = Path(os.environ["BFT_TEST_DIR"])
torch.manual_seed(1)
dataset = TensorDataset(torch.randn(60, 6), torch.randn(60, 1))
net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
model: Any = net
sampler: Any = None
if case != "plain":
    size, rank = (2, int(sys.argv[2])) if case == "two" else (1, 0)
    if size == 1:
        store: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]  # not in its stubs
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    else:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{directory}/group-of-two",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=30),
        )
    model = DistributedDataParallel(net)
    sampler = DistributedSampler(dataset, num_replicas=size, rank=rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(
    dataset, batch_size=8, shuffle=True if sampler is None else None, sampler=sampler
)
run = elastic.Run(model, optimizer, loader, epochs=3)
no_sync = run.no_sync if case == "plain" else model.no_sync
for epoch in run.epochs():
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in run.batches():
        optimizer.zero_grad()
        with no_sync():
            (0.5 * nn.functional.mse_loss(model(x), y)).backward()
        (0.5 * nn.functional.mse_loss(model(x), y)).backward()
        run.step()
if run.is_first:
    values = [t.flatten().tolist() for t in net.state_dict().values()]
    (directory / "result.json").write_text(json.dumps({"state": values, "steps": run.step_count}))
