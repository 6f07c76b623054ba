"""A recurrent model over consecutive pieces of text: its hidden state lives across batches.

Arguments: epochs, samples a worker takes at a time at most (0: all), seconds per step, and holds
(see ``holding``) as JSON. Writes every worker's updates, and parameters and rows at the end.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

epochs, most, delay_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
holds = json.loads(sys.argv[4])
COLUMNS, PIECES, LENGTH, WIDTH = 6, 13, 4, 5
directory = Path(os.environ["BFT_TEST_DIR"])
journal = (directory / f"journal-{os.getpid()}.jsonl").open("a", buffering=1)

torch.manual_seed(3)
text = torch.randn(COLUMNS, PIECES * LENGTH + 1)
# Sample PIECES-th * COLUMNS + column continues the one COLUMNS before it.
pieces = [text[c, p * LENGTH : (p + 1) * LENGTH + 1] for p in range(PIECES) for c in range(COLUMNS)]
loader = DataLoader(TensorDataset(torch.stack(pieces)), batch_size=COLUMNS)
model = torch.nn.ModuleDict({"rnn": torch.nn.GRU(1, WIDTH), "out": torch.nn.Linear(WIDTH, 1)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
hidden = elastic.PerSample(torch.zeros(COLUMNS, WIDTH))
run = elastic.Run(
    model,
    optimizer,
    loader,
    extra={"hidden": hidden},
    epochs=epochs,
    batch=elastic.GlobalBatch(max_per_worker=most or None),
)
for _ in run.epochs():
    hidden.clear()
    for (piece,) in run.batches():
        if holds and not run.rehearsing:
            importlib.import_module("holding").hold(run, holds)
        optimizer.zero_grad()
        past, following = piece[:, :-1].T.unsqueeze(2), piece[:, 1:].T.unsqueeze(2)
        states, last = model["rnn"](past, hidden.rows.unsqueeze(0))
        torch.nn.functional.mse_loss(model["out"](states), following).backward()
        hidden.rows = last.squeeze(0)
        if run.step():
            said = {"kind": "commit", "step": run.step_count, "generation": run.generation}
            journal.write(json.dumps(said) + "\n")
        time.sleep(delay_s)
if run.is_first:
    state = {"rows": hidden.state_dict()["rows"].tolist(), "steps": run.step_count}
    state["parameters"] = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    (directory / "result.json").write_text(json.dumps(state))
