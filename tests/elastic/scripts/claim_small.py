"""A small elastic training of ``tests.support.walks`` that notes when each worker first trains.

One file per worker: its node, when the script began and when its first step was
committed, both on the wall clock. The steps are short sleeps: what is measured is the
way to the first one.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

BEGAN_S = time.time()

import torch  # noqa: E402 - the time above is that of the first line
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from bftrainer import elastic  # noqa: E402

STEP_S = 0.05


def main() -> None:
    """Train until cancelled."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(68, 68), nn.ReLU(), nn.Linear(68, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    data = TensorDataset(torch.randn(6400, 68), torch.randint(0, 10, (6400,)))
    loss = nn.CrossEntropyLoss()
    run = elastic.Run(model, optimizer, DataLoader(data, batch_size=64, shuffle=True), epochs=10**6)
    is_noted = False
    for _ in run.epochs():
        for x, y in run.batches():
            time.sleep(STEP_S)
            optimizer.zero_grad()
            loss(model(x), y).backward()
            if run.step() and not is_noted:
                is_noted = True
                _note(time.time())


def _note(at_s: float) -> None:
    note = {"node": os.environ["SLURMD_NODENAME"], "began_s": BEGAN_S, "step_s": at_s}
    directory = Path(os.environ["BENCH_CLAIMS"])
    temporary = directory / f".{os.getpid()}"
    temporary.write_text(json.dumps(note))
    temporary.rename(directory / f"{os.getpid()}.json")


main()
