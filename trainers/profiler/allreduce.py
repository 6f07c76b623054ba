"""A worker that measures all-reduces; run by path in the user's interpreter.

``allreduce.py CONFIG``: CONFIG is a JSON object, see ``AllreduceConfig``. Workers meet through a
file on one machine, or through a TCP store on several. Rank 0 prints one JSON object: ``{"seconds":
[[...]], "torch": VERSION}``, one row per number of workers. Called by ``cli.profile``. Imports
nothing but torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=120)
LEAST_REPEATS, MOST_REPEATS = 3, 30


@dataclass(frozen=True)
class AllreduceConfig:
    """The measurements to make, and this process's rank."""

    rank: int
    size: int
    weights: list[int]
    workers: list[int]  # numbers of ranks that take part, from rank 0
    cell_s: float  # time for one combination of weights and workers
    meet: str  # path of a file, or HOST:PORT of rank 0


def main() -> None:
    """Meet, measure, print."""
    config = AllreduceConfig(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=_store(config), rank=config.rank, world_size=config.size, timeout=TIMEOUT
    )
    rows = []
    for k in config.workers:
        group = dist.new_group(list(range(k)), timeout=TIMEOUT)
        if config.rank < k:
            rows.append([_time(n, group, config.cell_s) for n in config.weights])
        dist.barrier()
    if config.rank == 0:
        print(json.dumps({"seconds": rows, "torch": torch.__version__}))  # noqa: T201
        sys.stdout.flush()
    os._exit(0)  # closing the groups would take long


def _store(config: AllreduceConfig) -> Any:
    distributed: Any = dist  # its type stubs do not know the stores
    if ":" not in config.meet:
        return distributed.FileStore(config.meet, config.size)
    host, _, port = config.meet.rpartition(":")
    return distributed.TCPStore(host, int(port), config.size, config.rank == 0, TIMEOUT)


def _time(weights: int, group: dist.ProcessGroup, cell_s: float) -> float:
    """Return the median time of several all-reduces, each after a barrier."""
    gradient = torch.ones(weights)
    times = [_once(gradient, group) for _ in range(2)]  # the first one sets up buffers
    repeats = torch.tensor([cell_s / max(times[1], 1e-6)])
    dist.all_reduce(repeats, dist.ReduceOp.MIN, group=group)
    count = max(LEAST_REPEATS, min(MOST_REPEATS, int(repeats.item())))
    return median(_once(gradient, group) for _ in range(count))


def _once(gradient: torch.Tensor, group: dist.ProcessGroup) -> float:
    dist.barrier(group=group)
    began = time.perf_counter()
    dist.all_reduce(gradient, group=group)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
