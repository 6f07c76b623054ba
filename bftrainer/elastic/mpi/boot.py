"""One worker of runtime ``mpi``; run by path in the user's interpreter.

    INTERPRETER /abs/path/bftrainer/elastic/mpi/boot.py FD

FD is a socket to the agent; its first line is ``{"config": WorkerConfig, ...}``, followed by
``protocol`` lines. MPI is loaded before the script, so that the script imports mpi4py with our
settings. Started by ``trainers.mpi``.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

PACKAGE_DIR = Path(__file__).resolve().parent.parent.parent
MAX_LINE_BYTES = 1 << 20


def first_line(channel: socket.socket, *, stays: bool = False) -> bytes:
    """Read the first line, no more; with ``stays`` leave that in the socket, too."""
    while True:
        seen = channel.recv(MAX_LINE_BYTES, socket.MSG_PEEK)
        line, end, _ = seen.partition(b"\n")
        if end:
            return line if stays else channel.recv(len(line) + 1)
        if not seen or len(seen) >= MAX_LINE_BYTES:
            raise ConnectionError("the agent is gone, or sent an overlong line")


def main() -> None:
    """Become the worker."""
    # The agent may have blocked signals; a program must die of them as usual.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    here = Path(__file__).resolve().parent  # its modules must not be visible to the script
    sys.path[:] = [p for p in sys.path if Path(p or os.curdir).resolve() != here]
    _load(PACKAGE_DIR / "elastic" / "finder.py").ensure_importable(PACKAGE_DIR)
    protocol = importlib.import_module("bftrainer.elastic.protocol")
    pmi = importlib.import_module("bftrainer.elastic.mpi.pmi")
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    config = protocol.from_body(json.loads(first_line(channel))["config"])
    pmi.serve(f"bft-{config.worker_id}-{os.uname().nodename}-{os.getpid()}")
    control = importlib.import_module("bftrainer.elastic.control").start(config, channel)
    worker = importlib.import_module("bftrainer.elastic.worker")
    worker.serve(config, control, _load_mpi)


def _load_mpi() -> None:
    library = importlib.import_module("bftrainer.elastic.mpi.library")
    library.require_connecting(library.load())
    library.unlink_shared_memory()
    for name in ("PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_ID"):
        os.environ.pop(name, None)  # not for programs that the script starts


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("_bft_finder", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"the installation of bftrainer lacks {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
