"""The other arm of ``bench_rescale``: the same loop under DistributedDataParallel.

Argument: ``big`` or ``small``. Started again it resumes from its last snapshot on tmpfs,
as a restarted script must. With BENCH_GATE it runs in blocks of steps, without snapshots, at a
fixed size.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from rescale_common import Gate, Records, Task
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def load(task: Task, path: Path) -> int:
    """Resume; returns the steps done."""
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    task.model.load_state_dict(saved["model"])
    task.optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(task: Task, path: Path, step: int) -> None:
    """Write a snapshot, whole or not at all."""
    temporary = path.with_suffix(f".{os.getpid()}")
    body = {"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict()}
    torch.save({**body, "step": step}, temporary)
    temporary.rename(path)


def main() -> None:
    """Train until killed."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    task = Task(sys.argv[1])
    gate_path = os.environ.get("BENCH_GATE", "")
    snapshot = Path(os.environ["BENCH_SNAPSHOT"]) if not gate_path else None
    if task.device.type == "cuda":
        torch.cuda.set_device(task.device)
    backend = os.environ.get("BENCH_DDP_BACKEND", "gloo")
    distributed.init_process_group(backend, timeout=timedelta(seconds=60))
    rank, size = distributed.get_rank(), distributed.get_world_size()
    step = load(task, snapshot) if snapshot else 0
    ddp = DistributedDataParallel(task.model)
    gate = Gate("plain", rank) if gate_path else None
    records = None if gate_path else Records()
    generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    every = int(os.environ.get("BENCH_SNAPSHOT_STEPS", "25"))
    sampler: DistributedSampler[object] = DistributedSampler(task.dataset, drop_last=True)
    loader = DataLoader(
        task.dataset, batch_size=task.batch // size, sampler=sampler, drop_last=True
    )
    for epoch in range(1_000_000):
        sampler.set_epoch(epoch)
        for features, labels in loader:
            if gate:
                gate.pass_step()
            task.optimizer.zero_grad()
            task.loss(ddp(features.to(task.device)), labels.to(task.device)).backward()
            task.optimizer.step()
            step += 1
            if records:
                records.write(step, generation, size, rank)
            if snapshot and rank == 0 and step % every == 0:
                save(task, snapshot, step)


main()
