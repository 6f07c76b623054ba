"""A script that computes values together with the other workers, at many places."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

settings: dict[str, Any] = {
    "epochs": 4,
    "samples": 50,
    "batch": 8,
    "plateau": False,
    "first_alone": "",  # rank 0 alone calls: "epoch" or "batch"
    "slow_s": 0.0,  # rank 0 evaluates so long
    "hang_at": 0,  # at the end of this epoch all but rank 0 wait for the file "go" in a call
    "in_batch": False,
    "delay_s": 0.0,
    **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"),
}
directory = Path(os.environ["BFT_TEST_DIR"])
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)


def note(kind: str, **what: object) -> None:
    where = {"step": run.step_count, "generation": run.generation, "rank": run.rank}
    journal.write(json.dumps({"kind": kind, **where, **what}) + "\n")


torch.manual_seed(0)
x = torch.randn(settings["samples"], 4)
y = x.sum(1, keepdim=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
loader = DataLoader(TensorDataset(x, y), batch_size=settings["batch"], shuffle=True)
run = elastic.Run(model, optimizer, loader, scheduler=scheduler, epochs=settings["epochs"])

for epoch in run.epochs():
    total = count = 0.0
    for a, b in run.batches():
        if settings["in_batch"] and not run.rehearsing:
            note("called", place="before", value=run.sum(run.rank + 1.0))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        if run.step():
            total, count = total + loss.item() * len(a), count + len(a)
            note("commit")
            if settings["in_batch"]:
                note(
                    "called", place="after", value=run.max(torch.tensor([run.rank, -1.0])).tolist()
                )
            if settings["first_alone"] == "batch" and run.rank == 0:
                run.mean(1.0)
        time.sleep(settings["delay_s"])
    if settings["hang_at"] == epoch + 1 and run.size > 1:
        note("at the call")
        if run.rank == 0:
            while not (directory / "go").exists():
                time.sleep(0.01)
    if settings["slow_s"] and run.rank == 0:
        time.sleep(settings["slow_s"])
    if settings["first_alone"] != "epoch" or run.rank == 0:
        mean = run.mean(total / max(count, 1.0), weight=count)
        n = run.sum(count)
        note("called", place="epoch", value=[mean, n], epoch=epoch, size=run.size)
        if settings["plateau"]:
            scheduler.step(mean)
    note("epoch", lr=optimizer.param_groups[0]["lr"], epoch=epoch)

if run.is_first:
    (directory / "result.json").write_text(json.dumps({"steps": run.step_count}))
