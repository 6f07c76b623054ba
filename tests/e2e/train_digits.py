"""The end-to-end tests' training script: digits, with a record of every sample.

Each batch carries the indices of its samples; every worker writes what it used, what was
committed and the hash of its parameters after each update and at the end of each generation.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

N_TRAIN = 1437


def data() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Return train set (pixels, label, index) and test pixels and labels."""
    # scikit-learn's file, read without importing scikit-learn: that takes a second of
    # processor time in every worker, and this machine has two cores for eight nodes.
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as lines:
        table = torch.tensor([[float(v) for v in line.split(",")] for line in lines])
    pixels = table[:, :64].reshape(-1, 1, 8, 8) / 16.0
    labels = table[:, 64].long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:N_TRAIN], order[N_TRAIN:]
    ids = torch.arange(N_TRAIN)
    return TensorDataset(pixels[train], labels[train], ids), pixels[test], labels[test]


def network(kind: str) -> nn.Module:
    """Return one of the three small networks."""
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    if kind == "wide":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)
        )
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def parameter_hash(model: nn.Module) -> str:
    """Return a hash over all parameters, bit by bit."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    """Train; rank 0 writes ``result.json``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", default="mlp")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sample-ms", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    (arguments.out / "records").mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    train, test_pixels, test_labels = data()
    model = network(arguments.network)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(train, batch_size=64, shuffle=True)
    run = elastic.Run(model, optimizer, loader, epochs=arguments.epochs)
    path = arguments.out / "records" / f"{os.uname().nodename}-{os.getpid()}.jsonl"
    with path.open("a", buffering=1) as record:

        def note(kind: str, **fields: object) -> None:
            record.write(json.dumps({"kind": kind, **fields}) + "\n")

        def note_parameters(generation: int, step: int) -> None:
            note("hash", generation=generation, step=step, hash=parameter_hash(model))

        run.on_generation_end(lambda info: note_parameters(info.generation, info.step))
        for _ in run.epochs():
            for pixels, labels, ids in run.batches():
                place = {"generation": run.generation, "step": run.step_count, "epoch": run.epoch}
                if not run.rehearsing:
                    note("batch", ids=ids.tolist(), **place)
                if not (arguments.out / "hurry").exists():  # until the story is over
                    time.sleep(arguments.sample_ms * len(ids) / 1000.0)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(pixels), labels).backward()
                if run.step():
                    note("committed", **place)
                    note_parameters(run.generation, run.step_count)
    if run.is_first:
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_pixels).argmax(1) == test_labels).float().mean().item()
        (arguments.out / "result.json").write_text(json.dumps({"accuracy": accuracy}))


if __name__ == "__main__":
    main()
