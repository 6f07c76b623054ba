"""The other arm of ``bench_rescale --sharded``: the same model under torch's own HSDP.

``fully_shard`` on a mesh of two dimensions: replicated over nodes, sharded over the workers of
each. Started again it resumes from its last ``torch.distributed.checkpoint`` on tmpfs. With
BENCH_GATE it runs in blocks of steps, without checkpoints.
"""

from __future__ import annotations

import os
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rescale_common import Gate, Records
from sharded_common import Task, await_turn
from torch import distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler

PER_NODE = 2


class Snapshots:
    """Checkpoints in a directory; a file names the newest that is complete."""

    def __init__(self, task: Task, directory: Path) -> None:
        self._task, self._directory, self._newest = task, directory, directory / "newest"

    def load(self) -> int:
        """Resume; returns the steps done."""
        if not self._newest.exists():
            return 0
        step = int(self._newest.read_text())
        state = self._state()
        load(state, checkpoint_id=self._directory / f"{step}")
        set_state_dict(
            self._task.model,
            self._task.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        return step

    def save(self, step: int) -> None:
        """Save; the one before goes."""
        save(self._state(), checkpoint_id=self._directory / f"{step}")
        if distributed.get_rank() == 0:
            before = self._newest.read_text() if self._newest.exists() else ""
            temporary = self._newest.with_suffix(".tmp")
            temporary.write_text(f"{step}")
            temporary.rename(self._newest)
            if before:
                shutil.rmtree(self._directory / before, ignore_errors=True)

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._task.model, self._task.optimizer)
        return {"model": model, "optimizer": optimizer}


def main() -> None:
    """Train until killed."""
    is_gated = "BENCH_GATE" in os.environ
    records = None if is_gated else Records()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=300))
    rank, size = distributed.get_rank(), distributed.get_world_size()
    shape = (size // PER_NODE, PER_NODE)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    task = Task(sys.argv[1], mesh, place=rank % PER_NODE)
    gate = Gate("plain", rank) if is_gated else None
    snapshots = None if is_gated else Snapshots(task, Path(os.environ["BENCH_SNAPSHOT"]))
    step = snapshots.load() if snapshots else 0
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    every = int(os.environ.get("BENCH_SNAPSHOT_STEPS", "10"))
    sampler: DistributedSampler[object] = DistributedSampler(task.dataset, drop_last=True)
    loader = DataLoader(
        task.dataset, batch_size=task.batch // size, sampler=sampler, drop_last=True
    )
    for epoch in range(1_000_000):
        sampler.set_epoch(epoch)
        for features, labels in loader:
            if gate:
                gate.pass_step()
            else:
                await_turn(step)
            task.learn(features, labels)
            task.optimizer.step()
            step += 1
            if records:
                records.write(step, restarts, size, rank)
            if snapshots and step % every == 0:
                snapshots.save(step)


main()
