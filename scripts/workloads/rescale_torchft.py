"""The same loop under torchft, one replica group of one worker per node.

Argument: ``big`` or ``small``. A replica that starts takes its state from one that is
training; a step in which a replica is lost is not committed and done again. The share of
the global batch follows the number of replicas. Environment: BENCH_LIGHTHOUSE, and what
``rescale_common`` reads.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import torch
from rescale_common import Records, Task
from torch._C._distributed_c10d import TCPStore
from torchft import Manager, Optimizer, ProcessGroupGloo

TIMEOUT = timedelta(seconds=30)


def manager_of(task: Task, store: TCPStore) -> Manager:
    """Return the manager that heals and counts this replica."""

    def load(saved: dict[str, Any]) -> None:
        task.model.load_state_dict(saved["model"])
        task.optimizer.load_state_dict(saved["optimizer"])

    def state() -> dict[str, Any]:
        return {"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict()}

    return Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        connect_timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=os.environ["BENCH_LIGHTHOUSE"],
        replica_id=f"{os.environ['BENCH_NODE']}-",
        hostname="127.0.0.1",
    )


def main() -> None:
    """Train until killed."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    task = Task(sys.argv[1])
    # Alone with itself: torchft's store of one replica group.
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    manager = manager_of(task, store)
    optimizer = Optimizer(manager, task.optimizer)
    records = Records()
    parameters = [p for p in task.model.parameters() if p.requires_grad]
    while True:
        optimizer.zero_grad()  # asks for the quorum of this step
        size = max(1, manager.num_participants())
        rank = manager.participating_rank() or 0
        share = task.batch // size
        at = (manager.current_step() * task.batch + rank * share) % len(task.dataset)
        features, labels = task.dataset[at : at + share]
        if len(labels) == 0:
            features, labels = task.dataset[:share]
        task.loss(task.model(features), labels).backward()
        works = [manager.allreduce(p.grad) for p in parameters if p.grad is not None]
        for work in works:
            work.wait()
        before = manager.current_step()
        optimizer.step()  # only when all replicas of the quorum agree
        if manager.current_step() > before:
            records.write(manager.current_step(), 0, size, rank)


main()
