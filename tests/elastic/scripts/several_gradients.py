"""Updates that a script of plain torch makes of several gradients, as the errors advise.

Settings come as one JSON argument. ``kind``: "sam" takes two gradients, each of the whole batch;
"accumulated" makes one of several batches, "parted" the same with little memory. The others do not
follow the advice.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic.gradients import comparison

SAMPLES, BATCH, RHO, LR = 49, 8, 0.5, 0.05
settings: dict[str, Any] = {"kind": "sam", "dies": 0, "delay_s": 0.003, **json.loads(sys.argv[1])}
kind = settings["kind"]
directory = Path(os.environ["BFT_TEST_DIR"])
# Parameters are compared in every update, also in those of a batch that only some have part of.
comparison.REST_S, comparison.SHARE = 0.0, 1e9  # type: ignore[misc]
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)

torch.set_default_dtype(torch.float64)
torch.manual_seed(5)
features = torch.randn(SAMPLES, 6)
targets = (features.prod(1, keepdim=True) + features[:, :1]).tanh()
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
loader = DataLoader(TensorDataset(features, targets), batch_size=BATCH)
more: dict[str, Any] = {}
if kind in ("sam", "sam without zero_grad"):
    more["backward_passes"] = 2
elif kind == "parted":
    more["batch"] = elastic.GlobalBatch(max_per_worker=2)
run = elastic.Run(net, optimizer, loader, epochs=1_000_000, **more)


def note(what: str, **rest: object) -> None:
    journal.write(json.dumps({"kind": what, "step": run.step_count, "at_s": time.time()} | rest))
    journal.write("\n")


@run.on_generation_end
def generation_end(info: elastic.GenerationInfo) -> None:
    bits = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    note("end", generation=info.generation, attempt=info.attempt, hash=zlib.crc32(bits))


def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(net(x), y)


def climb(x: torch.Tensor, y: torch.Tensor) -> None:
    """Take the gradient where the loss is largest nearby."""
    with run.no_sync() if kind == "sam under no_sync" else contextlib.nullcontext():
        loss(x, y).backward()
    if settings["dies"] == run.step_count + 1 and run.rank == 1 and run.generation == 1:
        os.kill(os.getpid(), 9)
    with torch.no_grad():
        grads = [p.grad for p in net.parameters() if p.grad is not None]
        moves = [grad * (RHO / nn.utils.get_total_norm(grads)) for grad in grads]
        for p, move in zip(net.parameters(), moves, strict=True):
            p.add_(move)
    if kind != "sam without zero_grad":
        optimizer.zero_grad()
    loss(x, y).backward()
    with torch.no_grad():
        for p, move in zip(net.parameters(), moves, strict=True):
            p.sub_(move)


for epoch in run.epochs():
    for x, y in run.batches():
        optimizer.zero_grad()
        if kind.startswith("sam"):
            climb(x, y)
        else:
            loss(x, y).backward()
        if run.step():
            note("commit", generation=run.generation, epoch=epoch)
            time.sleep(settings["delay_s"])
result = [value for p in net.parameters() for value in p.detach().flatten().tolist()]
(directory / "result.json").write_text(json.dumps({"parameters": result}))
