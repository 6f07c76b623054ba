"""What the training scripts of ``bench_rescale --sharded`` share: models, data, turns.

``sharded`` and ``large`` are cut over the two workers of a node; ``whole`` is as large as one shard
of ``sharded``. Parameters and optimizer have 200 MB on each worker. ``large`` has them with Adam
alone; in the others Adam keeps more of each parameter, so that steps are short.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

# Layers, their width, and what is kept of each parameter beside Adam's two averages.
MODELS = {"sharded": (10, 1024, 7), "whole": (5, 1024, 7), "light": (10, 1024, 0)}
MODELS["large"] = (8, 2048, 0)
BATCH, SAMPLES = 16, 1024


class Keeper(torch.optim.Adam):
    """Adam with a history of each parameter: state that is moved and saved, and costs no time."""

    def keep(self, count: int) -> None:
        """Keep so many tensors of each parameter."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = torch.tensor(0.0)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                state |= {f"kept{i}": torch.zeros_like(p) for i in range(count)}


class Task:
    """A model with its data and its global batch; ``mesh``: what it is sharded on."""

    def __init__(self, name: str, mesh: Any = None, place: int = 0) -> None:
        self.batch = BATCH
        depth, width, keeps_activations = MODELS[name]
        with torch.device("meta"):  # the whole model is nowhere
            layers: list[nn.Module] = []
            for _ in range(depth):
                layers += [nn.Linear(width, width), nn.ReLU()]
            self.model = nn.Sequential(*layers, nn.Linear(width, 10))
        if mesh is not None:
            from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - takes 0.2 s

            for layer in self.model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.model.to_empty(device="cpu")
        torch.manual_seed(place)
        with torch.no_grad():
            for p in self.model.parameters():
                local: Any = p.detach()
                (local.to_local() if mesh is not None else local).normal_(0.0, width**-0.5)
        self.optimizer = Keeper(self.model.parameters(), lr=1e-5)
        if keeps_activations:
            self.optimizer.keep(keeps_activations)
        self.loss = nn.CrossEntropyLoss()
        features = torch.randn(SAMPLES, width)
        self.dataset = TensorDataset(features, torch.randint(0, 10, (SAMPLES,)))

    def learn(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        """Do all of a step but the update."""
        self.optimizer.zero_grad()
        self.loss(self.model(features), labels).backward()


def await_turn(step: int) -> None:
    """Wait while another training is measured: from the step on that the file BENCH_TURN tells.

    All workers stop at the same step, so that none waits for another in a collective.
    """
    path = Path(os.environ.get("BENCH_TURN", "/nowhere"))
    while path.exists():
        text = path.read_text()
        if text and step < int(text):
            return
        time.sleep(0.005)
