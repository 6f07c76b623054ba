#!/usr/bin/env python3
"""A DistributedDataParallel script for runtime ``command``: a template for yours.

    bftrainer submit --runtime command --nodes 1:4 --interpreter $(which python) -- ddp_command.py

One process per node, as torchrun would start them; resized by restart. What the contract of
docs/howto/train-command.md adds to a script for torchrun is marked with ``contract:``. It also runs
alone (``python ddp_command.py``) or under torchrun.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

SAVED = 85  # contract: "my checkpoint is written, start me again"

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=int(os.environ.get("BFT_EPOCHS") or 20))
parser.add_argument("--batch-size", type=int, default=32, help="of all processes together")
parser.add_argument("--pause", type=float, default=0.0, help="more work: seconds per update")
args = parser.parse_args()

signals_received: list[int] = []


class Requests:
    """The agent's requests to this process."""

    def __init__(self) -> None:
        # contract: before anything that takes long; the default action of the signal kills.
        signal.signal(signal.SIGUSR1, lambda number, _: signals_received.append(number))
        self._file = Path(os.environ.get("BFT_CONTROL_FILE") or os.devnull)
        self._saves = 0

    def are_to_stop(self) -> bool:
        """Return whether any process was asked to save and end; the same answer on all of them."""
        # contract: not all are asked at the same instant, so they agree in every update.
        is_asked_here = bool(signals_received) or "stop" in self._file.read_text()
        is_asked = torch.tensor([float(is_asked_here)])
        dist.all_reduce(is_asked, op=dist.ReduceOp.MAX)
        return bool(is_asked.item())

    def are_to_save(self) -> bool:
        """Return whether a line ``save`` was added since the last call."""
        before, self._saves = self._saves, self._file.read_text().count("save")
        return self._saves > before


class Training:
    """Model, optimizer and position: all that a checkpoint has."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        x = torch.randn(1000, 8)
        self.data = TensorDataset(x, x @ torch.randn(8, 1) + 0.1 * torch.randn(1000, 1))
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.003)
        self.at = {"epoch": 0, "position": 0, "step": 0, "samples": 0, "index_sum": 0}

    def load(self, path: Path) -> None:
        """Take the newest checkpoint, if there is one."""
        if path.exists():
            saved = torch.load(path)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.at = saved["at"]

    def save(self, path: Path) -> None:
        """Write beside and rename: there is a whole checkpoint at any moment."""
        fresh = path.with_suffix(".fresh")
        with fresh.open("wb") as out:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save({**state, "at": self.at}, out)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(path)

    def order(self) -> torch.Tensor:
        """Return the epoch's order: of the epoch alone, so that a restart goes on in its middle."""
        generator = torch.Generator().manual_seed(self.at["epoch"])
        return torch.randperm(len(self.data), generator=generator)

    def update(self, model: nn.Module, batch: torch.Tensor, rank: int, size: int) -> None:
        """Make one update with this process's part of a batch."""
        mine = batch[rank::size]
        x, y = self.data[mine]
        self.optimizer.zero_grad()
        # DDP takes the mean over processes; parts may differ by a sample, or be empty.
        loss = nn.functional.mse_loss(model(x), y, reduction="sum") * size / len(batch)
        loss.backward()
        self.optimizer.step()
        index_sum = torch.tensor([int(mine.sum())])
        dist.all_reduce(index_sum)
        self.at["step"] += 1
        self.at["position"] += len(batch)
        self.at["samples"] += len(batch)
        self.at["index_sum"] += int(index_sum)  # shows a sample that was used twice or never


def train(training: Training, requests: Requests, checkpoint: Path) -> bool:
    """Train to the end and return True, or until asked to stop."""
    model = DistributedDataParallel(training.model)
    rank, size, at = dist.get_rank(), dist.get_world_size(), training.at
    while at["epoch"] < args.epochs:
        order = training.order()
        while at["position"] < len(order):
            batch = order[at["position"] : at["position"] + args.batch_size]
            training.update(model, batch, rank, size)
            time.sleep(args.pause / size)
            is_stopping = requests.are_to_stop()
            if rank == 0:
                # contract: progress of all processes together, from which speeds are learnt
                print(f"BFT step={at['step']} samples={at['samples']} epoch={at['epoch']}")
                if is_stopping or requests.are_to_save():
                    training.save(checkpoint)
            if is_stopping:
                return False
        at["epoch"], at["position"] = at["epoch"] + 1, 0
    return True


def main() -> int:
    """Return the exit status."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # typed as TextIO
    requests, training = Requests(), Training()
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "0" if os.environ["WORLD_SIZE"] == "1" else "29500")
    # contract: the directory from the environment at every start; it is renamed in between.
    checkpoint = Path(os.environ.get("BFT_CHECKPOINT_DIR") or ".") / "ddp.pt"
    training.load(checkpoint)
    dist.init_process_group("gloo")  # with GPUs nccl, and model and batches on the device
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}, pid {os.getpid()}")
    if dist.get_rank() == 0:
        print(f"BFT step={training.at['step']} samples={training.at['samples']}")
    is_finished = train(training, requests, checkpoint)
    # contract: a request that comes now must not kill us.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if is_finished and dist.get_rank() == 0:
        training.save(checkpoint)
        parameters = torch.cat([p.detach().flatten() for p in training.model.parameters()])
        result = {"at": training.at, "parameters": parameters.tolist()}
        (checkpoint.parent / "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()
    return 0 if is_finished else SAVED


if __name__ == "__main__":
    sys.exit(main())
