"""An ordinary training script whose batches carry their sample ids.

Settings come as one JSON argument. Each worker appends what it did to its own file:
the ids it worked on, the steps committed, a hash of the parameters at every end of a
generation. The tests put these together.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic import group as groups
from bftrainer.elastic.group import Broken

settings: dict[str, Any] = {
    "samples": 203,
    "batch": 16,
    "epochs": 2,
    "width": 16,
    "dropout": 0.0,
    "norm": False,
    "optimizer": "adam",
    "delay_s": 0.0,
    "loader_workers": 0,
    "fail_at": None,  # [step, rank]: that rank's collective fails where others' succeed
    **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"),
}
directory = Path(os.environ["BFT_TEST_DIR"])
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)


def note(kind: str, **what: object) -> None:
    journal.write(json.dumps({"kind": kind, "pid": os.getpid(), **what}) + "\n")


def digest(module: torch.nn.Module) -> str:
    whole = hashlib.sha256()
    for p in module.parameters():
        whole.update(bytes(p.detach().reshape(-1).view(torch.uint8).tolist()))
    return whole.hexdigest()


class Average:
    """A running average of the parameters, as users keep one beside the model."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.tensors = [p.detach().clone() for p in module.parameters()]
        self.updates = 0

    def update(self, module: torch.nn.Module) -> None:
        self.updates += 1
        for mean, p in zip(self.tensors, module.parameters(), strict=True):
            mean.lerp_(p.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"tensors": self.tensors, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tensors = [t.clone() for t in state["tensors"]]
        self.updates = state["updates"]


torch.manual_seed(3)
ids = torch.arange(settings["samples"])
features = torch.randn(settings["samples"], 8)
targets = features @ torch.randn(8, 1) + 0.1 * torch.randn(settings["samples"], 1)
loader = DataLoader(
    TensorDataset(ids, features, targets),
    batch_size=settings["batch"],
    shuffle=True,
    num_workers=settings["loader_workers"],
)
width = settings["width"]
layers: list[torch.nn.Module] = [torch.nn.Linear(8, width)]
if settings["norm"]:
    layers.append(torch.nn.BatchNorm1d(width))
layers += [torch.nn.Tanh(), torch.nn.Dropout(settings["dropout"]), torch.nn.Linear(width, 1)]
model = torch.nn.Sequential(*layers)
optimizer: torch.optim.Optimizer
if settings["optimizer"] == "adam":
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.97)
average = Average(model)

run = elastic.Run(
    model,
    optimizer,
    loader,
    scheduler=scheduler,
    extra={"average": average},
    epochs=settings["epochs"],
)


if settings["fail_at"] is not None:
    real_settle = groups.settle
    failures = [0]

    def settle(work: Any, abandoned: Callable[[], bool]) -> Broken | None:
        outcome = real_settle(work, abandoned)
        if not failures[0] and [run.step_count + 1, run.rank] == settings["fail_at"]:
            failures[0] = 1
            return Broken(reason="injected")
        return outcome

    groups.settle = settle

attempt = 0


@run.on_entered
def entered(info: elastic.GenerationInfo) -> None:
    global attempt  # noqa: PLW0603 - a script's module level
    attempt = info.attempt
    note("entered", generation=info.generation, attempt=attempt, rank=info.rank, size=info.size)


@run.on_generation_end
def generation_end(info: elastic.GenerationInfo) -> None:
    note(
        "end",
        generation=info.generation,
        attempt=info.attempt,
        step=info.step,
        size=info.size,
        hash=digest(model),
        lr=optimizer.param_groups[0]["lr"],
        updates=average.updates,
        moments=len(optimizer.state),
    )


for epoch in run.epochs():
    for number, x, y in run.batches():
        if not run.rehearsing:
            note(
                "try",
                generation=run.generation,
                attempt=attempt,
                step=run.step_count + 1,
                epoch=run.epoch,
                ids=number.tolist(),
            )
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        if run.step():
            note("commit", generation=run.generation, attempt=attempt, step=run.step_count)
        scheduler.step()
        average.update(model)
        if settings["delay_s"]:
            time.sleep(settings["delay_s"])
    note("epoch", epoch=run.epoch, loop=epoch, rank=run.rank)

if run.is_first:
    result = {
        "hash": digest(model),
        "parameters": [p.detach().flatten().tolist() for p in model.parameters()],
        "lr": optimizer.param_groups[0]["lr"],
        "updates": average.updates,
        "average": [t.flatten().tolist() for t in average.tensors],
        "steps": run.step_count,
        "samples": run.samples,
        "buffers": [b.flatten().tolist() for b in model.buffers()],
    }
    (directory / "result.json").write_text(json.dumps(result))
