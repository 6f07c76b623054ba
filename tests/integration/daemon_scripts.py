"""Training scripts for the daemon's tests, written where a test wants them."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

from bftrainer.model.trainer import TrainerSpec
from milp.problem import Curve

SLOW = """\
import json, os, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from bftrainer import elastic

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = TensorDataset(torch.randn(240, 4), torch.randn(240, 1))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=24, shuffle=True), epochs=1_000_000)
print("worker", os.getpid(), flush=True)
for epoch in run.epochs():
    for x, y in run.batches():
        time.sleep(0.05)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        run.step()
if run.is_first:
    open("done.json", "w").write(json.dumps({"steps": run.step_count}))
"""

# With it more nodes are worth their while, whatever else runs on the machine.
SCALES = SLOW.replace("time.sleep(0.05)", "time.sleep(0.004 * len(x))")
SCALING = Curve(sizes=(1, 2, 3), samples_per_s=(240.0, 470.0, 690.0))

# Without torch, whose import takes longer than all else where the training does not matter.
LIGHT = """\
import os, time
import numpy as np
from bftrainer.elastic import mpi

state, total = np.zeros(1), np.zeros(1)

def step(run):
    time.sleep(0.05)
    run.comm.Allreduce(state, total)

print("worker", os.getpid(), flush=True)
mpi.Run(replicated={"state": state}, batch=24).loop(step, steps=1_000_000)
"""

BROKEN = """\
raise RuntimeError("the data set is not there")
"""


def write_script(directory: Path, text: str) -> Path:
    """Put a script into its own directory."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "train.py"
    path.write_text(text)
    return path


def trainer_spec(directory: Path, text: str, **changes: object) -> TrainerSpec:
    """A trainer of this user with the script in a directory of its own."""
    fields: dict[str, object] = {
        "name": "slow",
        "user": getpass.getuser(),
        "script": str(write_script(directory, text)),
        "cwd": str(directory),
        "interpreter": sys.executable,
        "n_min": 1,
        "n_max": 2,
        "epochs": 1_000_000,
        "checkpoint_dir": str(directory / "checkpoints"),
    }
    return TrainerSpec(**{**fields, **changes})  # type: ignore[arg-type]  # test values


def light_spec(directory: Path, **changes: object) -> TrainerSpec:
    """A trainer of this user that begins soon and never ends."""
    return trainer_spec(directory, LIGHT, **{"runtime": "mpi", "epochs": None, **changes})
