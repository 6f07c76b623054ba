"""Trains by one of several losses, in float64 and without chance beside what each sample has.

Settings come as one JSON argument. Writes every worker's updates, and the parameters at the end.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

settings: dict[str, Any] = {
    "loss": "mean",
    "declared": None,
    "samples": 203,
    "batch": 16,
    "epochs": 2,
    "most": None,  # samples a worker takes at a time
    "logical": 0,
    "parts": 1,  # backward passes of the script over its share
    "clip": 0.0,
    "amp": False,
    "holds": [],
    "delay_s": 0.0,
    "rule": None,
    **json.loads(sys.argv[1]),
}
directory = Path(os.environ["BFT_TEST_DIR"])
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
COUNT, WORDS, LONGEST, IGNORED = settings["samples"], 7, 9, -100
x = torch.randn(COUNT, 8)
classes = torch.randint(0, WORDS, (COUNT,))
lengths = torch.randint(1, LONGEST + 1, (COUNT,))
tokens = torch.randint(0, WORDS, (COUNT, LONGEST))
labels = torch.where(torch.arange(LONGEST) < lengths[:, None], (tokens * 3 + 1) % WORDS, IGNORED)
noise = torch.randn(COUNT, 3)  # of each sample, for the latent variable
weights = torch.rand(WORDS) + 0.1


class Coder(nn.Module):
    """A small variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(8, 6), nn.Linear(3, 8)

    def forward(self, given: torch.Tensor, drawn: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, log_variance = self.into(given).chunk(2, dim=1)
        return self.back(mean + drawn * (0.5 * log_variance).exp()), mean, log_variance


def regression(b: list[torch.Tensor], reduction: str) -> torch.Tensor:
    return functional.mse_loss(model(b[0]), b[0].sum(1, keepdim=True), reduction=reduction)


def masked(b: list[torch.Tensor]) -> torch.Tensor:
    longest = int((b[3] != IGNORED).sum(1).max())  # padded to the longest of the share
    logits = model(b[2][:, :longest]).flatten(0, 1)
    return functional.cross_entropy(logits, b[3][:, :longest].flatten(), reduction="sum")


def coded(b: list[torch.Tensor]) -> torch.Tensor:
    out, mean, log_variance = model(b[0], b[4])
    apart = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return functional.mse_loss(out, b[0], reduction="sum") + apart


# What a part of a share adds to the loss of the share, before the division.
SUMS: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "mean": lambda b: regression(b, "sum"),
    "sum": lambda b: regression(b, "sum"),
    "tokens": masked,
    "classes": lambda b: functional.cross_entropy(
        model(b[0]), b[1], weight=weights, reduction="sum"
    ),
    "vae": coded,
}
DIVISORS: dict[str, Callable[[list[torch.Tensor]], float]] = {
    "mean": lambda b: len(b[0]),
    "tokens": lambda b: int((b[3] != IGNORED).sum()),
    "classes": lambda b: weights[b[1]].sum().item(),
}
kind = settings["loss"]
MODELS: dict[str, Callable[[], nn.Module]] = {
    "mean": lambda: nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 1)),
    "tokens": lambda: nn.Sequential(nn.Embedding(WORDS, 6), nn.Tanh(), nn.Linear(6, WORDS)),
    "classes": lambda: nn.Linear(8, WORDS),
    "vae": Coder,
}
model: nn.Module = MODELS.get(kind, MODELS["mean"])()
rate = 0.002 if kind in ("sum", "vae") else 0.1
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=7, enabled=settings["amp"])
batch: Any = elastic.GlobalBatch(max_per_worker=settings["most"])
if settings["rule"]:
    batch = elastic.PerWorkerBatch(rule=settings["rule"])
run = elastic.Run(
    model,
    optimizer,
    DataLoader(
        TensorDataset(x, classes, tokens, labels, noise),
        batch_size=settings["batch"],
        shuffle=True,
    ),
    extra={"scaler": scaler},
    epochs=settings["epochs"],
    batch=batch,
    bitwise=elastic.LogicalWorkers(settings["logical"]) if settings["logical"] else None,
    loss=settings["declared"],
)
for _ in run.epochs():
    for share in run.batches():
        if settings["holds"] and not run.rehearsing:
            importlib.import_module("holding").hold(run, settings["holds"])
        optimizer.zero_grad()
        divisor = DIVISORS[kind](share) if kind in DIVISORS else 1
        if kind in ("tokens", "classes"):
            run.weight(divisor)
        cuts = list(zip(*(column.chunk(settings["parts"]) for column in share), strict=True))
        for number, part in enumerate(cuts):
            loss = SUMS[kind](list(part)) / divisor if divisor != 1 else SUMS[kind](list(part))
            last = number == len(cuts) - 1
            with contextlib.nullcontext() if last else run.no_sync():
                scaler.scale(loss).backward()
        if settings["clip"]:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), settings["clip"])
        if run.step():
            said = {"kind": "commit", "step": run.step_count, "generation": run.generation}
            journal.write(json.dumps(said) + "\n")
        time.sleep(settings["delay_s"])
if run.is_first:
    values = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    result = {"parameters": values, "steps": run.step_count, "rule": run._rule.state_dict()}
    (directory / "result.json").write_text(json.dumps(result))
