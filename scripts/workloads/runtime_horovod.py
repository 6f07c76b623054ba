"""The Horovod arm of ``bench_runtimes``: an elastic script, under ours and ``horovodrun``.

Argument: ``big`` or ``small``. Commits every fifth step, because a commit copies the state.
"""

from __future__ import annotations

import sys
from typing import Any

import horovod.torch as hvd
from rescale_common import Records, Task

COMMIT_STEPS = 5


def main() -> None:
    """Train until killed."""
    hvd.init()
    task = Task(sys.argv[1])
    optimizer = hvd.DistributedOptimizer(
        task.optimizer, named_parameters=task.model.named_parameters()
    )
    records = Records()

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        while True:
            rank, size = hvd.rank(), hvd.size()
            first = state.step * task.batch % len(task.dataset)
            features, labels = task.dataset[first + rank : first + task.batch : size]
            optimizer.zero_grad()
            task.loss(task.model(features), labels).backward()
            optimizer.step()
            state.step += 1
            records.write(state.step, 0, size, rank)
            if state.step % COMMIT_STEPS == 0:
                state.commit()

    train(hvd.elastic.TorchState(model=task.model, optimizer=optimizer, step=0))


main()
