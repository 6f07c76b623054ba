"""The script of ``bench_clean``: starts all that trainings leave behind, and stays.

Arguments: number of the loader's processes, ``idle`` or ``busy`` (in an all-reduce whose other
member does not come), and ``horovod`` for a context of Horovod too. Runs as a worker of any
runtime, or as a job.
"""

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from bftrainer.elastic.process import control
from bftrainer.ground import protocol


def join(rank: int) -> None:
    """Become a member of a group of two."""
    where = f"file://{Path('store').absolute()}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2)


def never_comes() -> None:
    """Take part in no collective."""
    join(1)
    time.sleep(3600)


def stray() -> None:
    """Start a process in a session of its own, whose parents are gone."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)


if __name__ == "__main__":
    loaders, is_busy = int(sys.argv[1]), sys.argv[2] == "busy"
    if sys.argv[3:] == ["horovod"]:
        importlib.import_module("horovod.torch").init()
    if is_busy:
        multiprocessing.get_context("fork").Process(target=never_comes, daemon=True).start()
        join(0)
    data = TensorDataset(torch.randn(4096, 8))
    batches = iter(DataLoader(data, batch_size=8, num_workers=loaders))
    kept = [next(batches) for _ in range(4)]
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    lock = multiprocessing.get_context("spawn").Lock()
    directory = tempfile.mkdtemp()
    stray()
    files = [f"/dev/shm/{block.name}", f"/dev/shm/sem.{vars(lock)['_semlock'].name[1:]}"]  # noqa: S108
    Path(".files").write_text(json.dumps(files))
    Path(".files").rename("files")
    if control.is_worker():
        control.current().send(protocol.Warm(warm_up_s=0.5))
    else:
        print("BFT ready", flush=True)
    if is_busy:
        dist.all_reduce(torch.ones(1 << 20))
    threading.Event().wait()
