"""A training of a few steps whose process keeps something that does not end by itself.

The first argument says what; it hangs on a module, as what an imported library keeps.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bftrainer import elastic
from bftrainer.elastic import worker

library: Any = types.ModuleType("a_library")
sys.modules["a_library"] = library
model: Any = nn.Linear(4, 1)


def sleep_for_ever() -> None:
    while True:
        time.sleep(0.1)


def keep_thread_pool() -> None:
    library.pool = concurrent.futures.ThreadPoolExecutor(2)
    library.pool.submit(abs, 1).result()


def keep_process_pool() -> None:
    library.pool = concurrent.futures.ProcessPoolExecutor(1)
    library.pool.submit(abs, 1).result()


def keep_multiprocessing_pool() -> None:
    library.pool = multiprocessing.get_context("fork").Pool(1)
    library.pool.apply(abs, (1,))


def keep_thread() -> None:
    worker.GRACE_S = 2.0  # what never ends needs no longer wait
    threading.Thread(target=sleep_for_ever, name="never-ending").start()


def keep_exit_handler() -> None:
    worker.GRACE_S = 2.0
    atexit.register(sleep_for_ever)


def keep_child() -> None:
    library.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path("child").write_text(str(library.child.pid))


def keep_compiled() -> None:
    library.model = torch.compile(model)


def keep_file() -> None:
    library.file = Path("written").open("w")  # noqa: SIM115 - as careless scripts do
    library.file.write("not flushed")


keep: Callable[[], None] = globals()[f"keep_{sys.argv[1]}"]
keep()
library.model = getattr(library, "model", model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
run = elastic.Run(model, optimizer, DataLoader(data, batch_size=5), epochs=1)
for _ in run.epochs():
    for x, y in run.batches():
        optimizer.zero_grad()
        nn.functional.mse_loss(library.model(x), y).backward()
        run.step()
Path("over").write_text(str(os.getpid()))
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
