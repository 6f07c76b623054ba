"""The training of ``bench_strangers``: every sum and every parameter is known beforehand.

Each sample's gradient is 1 in every element, and the parameter falls by it: after n steps it is -n
exactly. What differs was not sent by a member; it is appended to the file BENCH_FOREIGN. Where
the file BENCH_UNPROVEN exists, generations form without the proof, so that both can be timed;
what the proof takes is appended to BENCH_PROOF_S. Every sixth member of a group opens its port and
connects up to BENCH_LATE_S after the others, which leaves a stranger that much time.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import torch
from step_records import Records
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic import group

SIZE = 4096
prove = group.prove_pairs
connect = group.new_process_group


def timed(*args: Any) -> None:
    """Prove as usual, with a note of the time, s; or not at all."""
    if Path(os.environ["BENCH_UNPROVEN"]).exists():
        return
    began_s = time.perf_counter()
    prove(*args)
    _append("BENCH_PROOF_S", f"{time.perf_counter() - began_s}\n")


def late(*args: Any) -> Any:
    """Connect as usual, now or later."""
    if random.random() < 1 / 6:  # noqa: S311 - no secret
        time.sleep(random.random() * float(os.environ["BENCH_LATE_S"]))  # noqa: S311
    return connect(*args)


def _append(name: str, text: str) -> None:
    with Path(os.environ[name]).open("a") as file:
        file.write(text)


class Known(nn.Module):
    """A parameter whose gradient is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE))

    def forward(self, ones: torch.Tensor) -> torch.Tensor:
        """Return the mean over samples of the sum of weights."""
        return (ones * self.weight.sum()).mean()


def main() -> None:
    """Train until killed."""
    setattr(group, "prove_pairs", timed)  # noqa: B010 - the types differ in their names
    setattr(group, "new_process_group", late)  # noqa: B010
    model = Known()
    data = TensorDataset(torch.ones(1 << 20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = elastic.Run(model, optimizer, DataLoader(data, batch_size=64), epochs=1_000_000)
    records = Records()
    run.on_committed(lambda i: records.write(i.step, i.generation, i.size, i.rank))
    for _ in run.epochs():
        for (ones,) in run.batches():
            optimizer.zero_grad()
            model(ones).backward()
            run.step()
            if not run.rehearsing and bool((model.weight != -float(run.step_count)).any()):
                wrong = model.weight.detach().unique()[:4].tolist()
                where = f"rank {run.rank} of {run.size}, generation {run.generation}"
                _append("BENCH_FOREIGN", f"{where}, step {run.step_count}: {wrong}\n")


main()
