"""What a step pays for the possibility that its membership changes.

In one process, with the runtime's own code: what ``Run`` does between two steps, and the
vote in the last bucket with its count. Out comes the time of one step's share, s. Called
by ``bench_rescale``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

ROUNDS: Final = 200
CALLS: Final = 100


def check_s() -> float:
    """Return the time per step: the median of rounds of calls, s."""
    import torch  # noqa: PLC0415 - heavy, only needed here
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415

    from bftrainer import elastic  # noqa: PLC0415 - imports torch
    from bftrainer.elastic.gradients.buckets import GradientReducer  # noqa: PLC0415

    torch.set_num_threads(1)
    model = torch.nn.Linear(68, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.zeros(64, 68), torch.zeros(64))
    run = elastic.Run(model, optimizer, DataLoader(data, batch_size=8), epochs=1)
    next(run.epochs())
    next(run.batches())
    reducer = GradientReducer(list(model.parameters()))
    membership = run._membership  # noqa: SLF001 - its private parts are what is measured
    reducer.bind(None, membership.wants_switch, membership.must_abandon)
    bucket = reducer.buckets[-1]

    def step() -> None:
        run._boundary()  # noqa: SLF001
        reducer._write_flags(bucket)  # noqa: SLF001
        bucket.flags.tolist()

    return _per_call_s(step)


def _per_call_s(action: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CALLS):
            action()
        times.append((time.perf_counter() - started) / CALLS)
    return median(times)
