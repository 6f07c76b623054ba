"""Scripts of many kinds, each of which can be made to differ on one worker.

Settings come as one JSON argument and choose network, optimizer, schedule and what a script keeps
beside them. ``mutation`` names what the last worker of a generation does differently.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

settings: dict[str, Any] = {
    "network": "mlp",
    "optimizer": "sgd",
    "schedule": "",
    "average": "",  # "ema" or "swa"
    "amp": False,
    "clip": 0.0,
    "passes": 1,
    "equal": "error",
    "epochs": 3,
    "delay_s": 0.0,
    "holds": [],
    "mutation": "",
    "odd": False,  # this worker has other data, if the mutation is of data
    "torch": "",  # the version of torch that this worker seems to have
    "stray": -1,  # rank that hangs before it ends
    "stop": 0,  # update after which all workers leave their loops; 0: none
    "since": 4,  # update from which on the mutation works
    **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"),
}
SAMPLES, BATCH, CLASSES = 96, 8, 4
directory = Path(os.environ["BFT_TEST_DIR"])
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)

torch.manual_seed(3)
features = torch.randn(SAMPLES, 16)
targets = torch.randint(CLASSES, (SAMPLES,))
if settings["odd"] and settings["mutation"] == "order":  # as files are listed elsewhere
    features, targets = features.flip(0), targets.flip(0)
if settings["odd"] and settings["mutation"] == "data":  # as another copy of the files
    features = features + 0.5
if settings["torch"]:
    torch.__version__ = settings["torch"]


class Tokens(nn.Module):
    """An embedding and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Embedding(32, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.cell(self.embed((x.abs() * 10).long().clamp(max=31)))
        return self.head(hidden[:, -1])  # type: ignore[no-any-return]


NETWORKS: dict[str, Any] = {
    "mlp": lambda: nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, CLASSES)),
    "dropout": lambda: nn.Sequential(nn.Linear(16, 12), nn.Dropout(0.3), nn.Linear(12, CLASSES)),
    "norm": lambda: nn.Sequential(nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Linear(12, CLASSES)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 16)), nn.Conv1d(1, 3, 5), nn.ReLU(), nn.Flatten(),
        nn.Linear(36, CLASSES),
    ),
    "tokens": Tokens,
}  # fmt: skip
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.005),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "groups": lambda p: torch.optim.SGD([{"params": [q], "lr": 0.02} for q in p]),
}
model = NETWORKS[settings["network"]]()
optimizer = OPTIMIZERS[settings["optimizer"]](list(model.parameters()))
rates = torch.optim.lr_scheduler
SCHEDULES: dict[str, Any] = {
    "step": lambda: rates.StepLR(optimizer, 5, gamma=0.8),
    "cosine": lambda: rates.CosineAnnealingLR(optimizer, 40),
    "restarts": lambda: rates.CosineAnnealingWarmRestarts(optimizer, 1, T_mult=2),
    "one-cycle": lambda: rates.OneCycleLR(optimizer, 0.1, total_steps=200),
    "plateau": lambda: rates.ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
    "warm-up": lambda: rates.SequentialLR(
        optimizer,
        [rates.LinearLR(optimizer, 0.1, total_iters=6), rates.ExponentialLR(optimizer, 0.97)],
        [6],
    ),
    "lambda": lambda: rates.LambdaLR(optimizer, lambda update: 0.98**update),
}
scheduler: Any = SCHEDULES[settings["schedule"]]() if settings["schedule"] else None
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3, enabled=settings["amp"])


class Notes:
    """What a script notes: plain numbers."""

    def __init__(self) -> None:
        self.best, self.updates = 1e9, 0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.updates = state["best"], state["updates"]


notes = Notes()
extra: dict[str, Any] = {"scaler": scaler, "notes": notes}
average = None
if settings["average"]:
    decay = 0.9 if settings["average"] == "ema" else None
    of = torch.optim.swa_utils.get_ema_multi_avg_fn(decay) if decay else None
    average = extra["average"] = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=of)

loader = DataLoader(TensorDataset(features, targets), batch_size=BATCH, shuffle=True)
run = elastic.Run(
    model, optimizer, loader, scheduler=scheduler, extra=extra, epochs=settings["epochs"],
    equal=settings["equal"],
)  # fmt: skip
noise = torch.Generator().manual_seed(os.getpid())


def is_odd(mutation: str) -> bool:
    """Return whether this worker does now what the mutation says."""
    is_it = settings["mutation"] == mutation and run.size > 1 and run.rank == run.size - 1
    return is_it and not run.rehearsing and run.step_count >= settings["since"]


def sum_of_parameters() -> float:
    return float(sum(p.detach().double().abs().sum().item() for p in model.parameters()))


def losses(x: torch.Tensor, y: torch.Tensor) -> Iterator[torch.Tensor]:
    for _ in range(settings["passes"]):
        with torch.autocast("cpu", torch.bfloat16, enabled=settings["amp"]):
            loss = functional.cross_entropy(model(x).float(), y) / settings["passes"]
        yield loss


def validation() -> float:
    """The loss over all samples, the same on all workers."""
    model.eval()
    with torch.no_grad():
        loss = functional.cross_entropy(model(features).float(), targets).item()
    model.train()
    return round(loss, 4)


def backward(x: torch.Tensor, y: torch.Tensor) -> None:
    for number, loss in enumerate(losses(x, y), 1):
        with contextlib.nullcontext() if number == settings["passes"] else run.no_sync():
            scaler.scale(loss).backward()
    if settings["clip"]:
        scaler.unscale_(optimizer)
        limit = settings["clip"] * (0.5 if is_odd("clipping") else 1.0)
        nn.utils.clip_grad_norm_(model.parameters(), limit)


def meddle() -> None:
    """Do what only the odd worker does."""
    if is_odd("counter"):
        notes.updates += 1
    if is_odd("scaling"):
        scaler.update(scaler.get_scale() * 2)
    if is_odd("seed"):  # noise that each worker draws for itself
        with torch.no_grad():
            first = next(model.parameters())
            first.add_(0.01 * torch.randn(first.shape, generator=noise))
    if is_odd("average") and average is not None and run.step_count % 5 == 0:
        model.load_state_dict(average.module.state_dict())


def go_on(place: int) -> None:
    """Do what follows an update."""
    notes.updates += 1
    if average is not None:
        average.update_parameters(model)
    meddle()
    schedule = settings["schedule"]
    if schedule == "restarts":
        updates = place if is_odd("schedule") else run.step_count % len(loader)
        scheduler.step(run.epoch + updates / len(loader))
    elif schedule == "plateau":
        if run.step_count % 4 == 0 and not is_odd("evaluation"):
            scheduler.step(validation())
    elif schedule and not is_odd("schedule"):
        scheduler.step()


def note_commit() -> None:
    note = {
        "kind": "commit",
        "step": run.step_count,
        "generation": run.generation,
        "sum": sum_of_parameters(),
        "lr": optimizer.param_groups[0]["lr"],
    }
    journal.write(json.dumps(note) + "\n")


for _ in run.epochs():
    for place, (x, y) in enumerate(run.batches()):
        if not run.rehearsing and settings["holds"]:
            importlib.import_module("holding").hold(run, settings["holds"])
        optimizer.zero_grad()
        if is_odd("branch"):  # as where one device needs other settings
            optimizer.param_groups[0]["weight_decay"] = 0.02
        backward(x, y)
        if run.step():
            go_on(place)
            note_commit()
        time.sleep(settings["delay_s"])
        is_over = settings["stop"] and run.step_count >= settings["stop"]
        if (is_over and not run.rehearsing) or is_odd("stopping"):
            break
    else:
        continue
    break

if run.rank == settings["stray"]:
    (directory / "stray").touch()
    time.sleep(600)
run.finish()
if run.is_first:
    result = {
        "sum": sum_of_parameters(),
        "steps": run.step_count,
        "updates": notes.updates,
        "lr": optimizer.param_groups[0]["lr"],
    }
    (directory / "result.json").write_text(json.dumps(result))
