#!/usr/bin/env python3
"""Stochastic gradient descent with elastic Horovod: an ordinary script, without bftrainer.

    bftrainer submit --runtime horovod --nodes 1:4 --curve CURVE trainers/examples/horovod_sgd.py

Also runs under ``horovodrun``. Fits a line to synthetic points; each worker processes a share of
each batch. The state counts every sample over all workers, which shows any sample used twice or
never.
"""

import argparse
import json
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser(description="SGD with elastic Horovod")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--commit-every", type=int, default=1)
parser.add_argument("--hidden", type=int, default=0, help="a larger model: its width")
parser.add_argument("--pause", type=float, default=0.0, help="more work: seconds a step, shared")
parser.add_argument("--out", type=Path, help="where the result is written")
options = parser.parse_args()

hvd.init()
torch.manual_seed(0)
if options.hidden:
    model = torch.nn.Sequential(torch.nn.Linear(1, options.hidden), torch.nn.ReLU())
    model.append(torch.nn.Linear(options.hidden, options.hidden))
    model.append(torch.nn.Linear(options.hidden, 1))
else:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    named_parameters=model.named_parameters(),
)
print(f"rank {hvd.rank()} of {hvd.size()}, pid {os.getpid()}", flush=True)


def indices(step: int) -> list[int]:
    """Return this worker's samples of a step."""
    first = step * options.batch
    return list(range(first + hvd.rank(), first + options.batch, hvd.size()))


@hvd.elastic.run  # type: ignore[untyped-decorator]
def train(state: hvd.elastic.TorchState) -> None:
    """Train until all steps are done; called again after every change of size."""
    used_samples = used_indices = 0  # by this worker since the last commit: how many, which
    while state.step < options.steps:
        time.sleep(options.pause / hvd.size())
        mine = indices(state.step)
        x = torch.tensor([[i * 7919 % 1000 / 500 - 1] for i in mine])
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), 3 * x - 1).backward()
        optimizer.step()
        used_samples += len(mine)
        used_indices += sum(mine)
        state.step += 1
        if state.step % options.commit_every == 0 or state.step == options.steps:
            of_all = torch.tensor([used_samples, used_indices], dtype=torch.float64)
            of_all = hvd.allreduce(of_all, op=hvd.Sum, name="used")
            samples, indices_sum = of_all.tolist()
            state.samples += int(samples)
            state.index_sum += int(indices_sum)
            used_samples = used_indices = 0
            state.commit()


state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, samples=0, index_sum=0)
train(state)
if hvd.rank() == 0:
    result = {"step": state.step, "samples": state.samples, "index_sum": state.index_sum}
    print(json.dumps(result))
    if options.out is not None:
        options.out.write_text(json.dumps(result))
