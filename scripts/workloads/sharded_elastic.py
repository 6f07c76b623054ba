"""Our arm of ``bench_rescale --sharded``: a model through ``bftrainer.elastic``.

Argument: one of ``sharded_common.MODELS``; ``whole`` is not sharded. With BENCH_GATE it runs in
blocks of steps at the size BENCH_SIZE, otherwise as fast as it can while it is its turn.
"""

from __future__ import annotations

import os
import sys

import torch
from rescale_common import Gate, Records
from sharded_common import Task, await_turn
from torch.utils.data import DataLoader

from bftrainer import elastic


def main() -> None:
    """Train until killed."""
    gated_size = int(os.environ.get("BENCH_SIZE", "0"))
    records = None if gated_size else Records()
    torch.set_num_threads(1)
    name = sys.argv[1]
    task = Task(name, None if name == "whole" else elastic.node_mesh())
    loader = DataLoader(task.dataset, batch_size=task.batch, shuffle=True, drop_last=True)
    run = elastic.Run(task.model, task.optimizer, loader, epochs=1_000_000)
    gate: Gate | None = None
    if records:
        kept = records
        run.on_committed(lambda i: kept.write(i.step, i.generation, i.size, i.rank))
        entered = Records("entries")
        run.on_entered(lambda i: entered.write(i.step, i.generation, i.size, i.rank))
    for _ in run.epochs():
        for features, labels in run.batches():
            if gated_size and run.size == gated_size and not run.rehearsing:
                gate = gate or Gate("elastic", run.rank)
                gate.pass_step()
            elif not run.rehearsing:
                await_turn(run.step_count)
            task.learn(features, labels)
            run.step()


main()
