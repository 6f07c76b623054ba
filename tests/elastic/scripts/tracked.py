"""The first part of the scripts of ``test_trackers``: a run, and its journal."""

import functools
import json
import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, os.environ["BFT_TEST_SCRIPTS"])
from holding import hold  # type: ignore[import-not-found]  # beside this script

from bftrainer import elastic

__all__ = ["functools", "hold", "holds", "model", "os", "run"]

holds = json.loads(sys.argv[1])
directory = Path(os.environ["BFT_TEST_DIR"])
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)
model = torch.nn.Linear(2, 1)
data = DataLoader(TensorDataset(torch.ones(80, 2), torch.ones(80, 1)), batch_size=4)
run = elastic.Run(model, torch.optim.SGD(model.parameters(), lr=0.01), data, epochs=2)


@run.on_committed
def committed(info: elastic.GenerationInfo) -> None:
    """Note a committed step."""
    where = {"generation": info.generation, "attempt": info.attempt, "step": info.step}
    journal.write(json.dumps({"kind": "commit", **where}) + "\n")
