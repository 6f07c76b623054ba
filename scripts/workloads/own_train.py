"""A training whose samples cost time, so that nodes on one machine scale; two ways to run it.

``own_train.py elastic EPOCHS`` is made elastic by bftrainer. ``own_train.py requeue OUT`` is what
people do without it: DistributedDataParallel on the nodes of one job (``srun``), a checkpoint by
rank 0 every ten seconds, and ``sbatch --requeue``. Both write nothing but their progress. Called
by ``bench_own``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_SAMPLES, BATCH, SAMPLE_S, SAVE_EVERY_S = 2048, 64, 0.004, 10.0


def _parts() -> tuple[nn.Module, torch.optim.Optimizer, TensorDataset]:
    torch.manual_seed(0)
    x = torch.randn(N_SAMPLES, 32)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 2))
    return model, torch.optim.Adam(model.parameters()), TensorDataset(x, y)


def elastic(epochs: int) -> None:
    """Train on whatever nodes there are."""
    from bftrainer import elastic as bft  # noqa: PLC0415 - the other way does without

    model, optimizer, data = _parts()
    run = bft.Run(model, optimizer, DataLoader(data, batch_size=BATCH, shuffle=True), epochs=epochs)
    for _ in run.epochs():
        for x, y in run.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            time.sleep(SAMPLE_S * len(x))
            run.step()


def requeue(out: Path) -> None:
    """Train on all nodes of the job, from the last checkpoint on, until the job ends."""
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    meeting = (
        out / f"meeting-{os.environ['SLURM_JOB_ID']}-{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    )
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size
    )
    model, optimizer, data = _parts()
    n_done, saved = 0, out / "checkpoint.pt"
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        n_done = state["done"]
    parallel, saved_s = nn.parallel.DistributedDataParallel(model), time.monotonic()
    while True:
        order = torch.randperm(N_SAMPLES, generator=torch.Generator().manual_seed(n_done))
        for batch in order.split(BATCH):
            x, y = data[batch[rank::size]]
            optimizer.zero_grad()
            nn.functional.cross_entropy(parallel(x), y).backward()
            time.sleep(SAMPLE_S * len(x))
            optimizer.step()
            n_done += len(batch)
            if rank == 0:
                (out / "done").write_text(f"{n_done}\n")
                if time.monotonic() - saved_s > SAVE_EVERY_S:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "done": n_done}, saved.with_suffix(".new"))
                    saved.with_suffix(".new").replace(saved)
                    saved_s = time.monotonic()


if __name__ == "__main__":
    if sys.argv[1] == "elastic":
        elastic(int(sys.argv[2]))
    else:
        requeue(Path(sys.argv[2]))
