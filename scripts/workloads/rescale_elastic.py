"""The elastic arm of ``bench_rescale``: an ordinary loop through ``bftrainer.elastic``.

Argument: ``big`` or ``small``. With BENCH_GATE it runs in blocks of steps at the size
BENCH_SIZE, otherwise as fast as it can.
"""

from __future__ import annotations

import os
import sys

from rescale_common import Gate, Records, Task
from torch.utils.data import DataLoader

from bftrainer import elastic


def main() -> None:
    """Train until killed."""
    task = Task(sys.argv[1])
    loader = DataLoader(task.dataset, batch_size=task.batch, shuffle=True, drop_last=True)
    run = elastic.Run(task.model, task.optimizer, loader, epochs=1_000_000)
    gate: Gate | None = None
    gated_size = int(os.environ.get("BENCH_SIZE", "0"))
    if not gated_size:
        records = Records()
        run.on_committed(lambda i: records.write(i.step, i.generation, i.size, i.rank))
    for _ in run.epochs():
        for features, labels in run.batches():
            if gated_size and run.size == gated_size and not run.rehearsing:
                gate = gate or Gate("elastic", run.rank)
                gate.pass_step()
            task.optimizer.zero_grad()
            task.loss(task.model(features.to(task.device)), labels.to(task.device)).backward()
            run.step()


main()
