"""Two models that train each other. The argument: registered, or as scripts do it alone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic

is_registered = sys.argv[1] == "registered"
torch.manual_seed(5)
noise, real = torch.randn(96, 4), torch.randn(96, 3)
generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
judge = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
makes = torch.optim.Adam(generator.parameters(), lr=0.01)
judges = torch.optim.SGD(judge.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(noise, real), batch_size=8, shuffle=True)
if is_registered:
    run = elastic.Run([generator, judge], [makes, judges], loader, epochs=4)
else:
    run = elastic.Run(generator, makes, loader, epochs=4)
entropy = nn.functional.binary_cross_entropy_with_logits


def digest() -> list[float]:
    return [float(p.detach().double().sum()) for m in (generator, judge) for p in m.parameters()]


@run.on_generation_end
def generation_end(info: elastic.GenerationInfo) -> None:
    said = {"kind": "end", "generation": info.generation, "attempt": info.attempt}
    said |= {"step": info.step, "hash": str(digest())}
    with Path(f"journal-{os.getpid()}.jsonl").open("a") as journal:
        journal.write(json.dumps(said) + "\n")


for _ in run.epochs():
    for z, x in run.batches():
        makes.zero_grad()
        judges.zero_grad()
        made = generator(z)
        guess = judge(torch.cat([x, made.detach()]))
        truth = torch.cat([torch.ones(len(x), 1), torch.zeros(len(x), 1)])
        if is_registered:
            with run.no_sync():
                entropy(guess, truth).backward()
        else:
            entropy(guess, truth).backward()
            judges.step()
        judge.requires_grad_(False)  # noqa: FBT003
        entropy(judge(made), torch.ones(len(x), 1)).backward()
        judge.requires_grad_(True)  # noqa: FBT003
        run.step()
Path("result.json").write_text(json.dumps(digest()))
