"""One worker of runtime ``mpi``; run by path in the user's interpreter.

    INTERPRETER /abs/path/bftrainer/elastic/mpi/boot.py FD

FD is a socket to the agent; its first line is ``{"config": WorkerConfig, ...}``, followed by
``protocol`` lines. MPI is loaded before the script, so that the script imports mpi4py with our
settings. Started by ``trainers.mpi``.

A Python that is too old is refused before anything else (BFT-1006), so Python 3.6 must be able to
read this file.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path

PACKAGE_DIR = Path(__file__).resolve().parent.parent.parent
MAX_LINE_BYTES = 1 << 20


def first_line(channel: socket.socket, *, stays: bool = False) -> bytes:
    """Read the first line, no more; with ``stays`` leave that in the socket, too."""
    while True:
        received = channel.recv(MAX_LINE_BYTES, socket.MSG_PEEK)
        line, end, _ = received.partition(b"\n")
        if end:
            return line if stays else channel.recv(len(line) + 1)
        if not received or len(received) >= MAX_LINE_BYTES:
            raise ConnectionError("the agent is gone, or sent an overlong line")


def _refuse(channel: socket.socket, code: str, cause: str, next_step: str) -> int:
    """Tell the daemon why, as ``protocol.Failed``, which this Python may not be able to read."""
    first_line(channel)  # unread, it would reset the connection
    failed = {"type": "Failed", "code": code, "cause": cause, "next_step": next_step}
    channel.sendall(json.dumps(failed).encode() + b"\n")
    return 1


def main() -> int:
    """Become the worker; return only if this Python is refused."""
    # The agent may have blocked signals; a program must die of them as usual.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    folder = Path(__file__).resolve().parent  # its modules must not be visible to the script
    sys.path[:] = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != folder]
    channel = socket.socket(fileno=int(sys.argv[1]))
    versions = runpy.run_path(str(PACKAGE_DIR / "ground" / "versions.py"))
    refusal = versions["refusal"](versions["there"]()[0])
    if refusal:
        return _refuse(channel, **refusal)
    finder = runpy.run_path(str(PACKAGE_DIR / "elastic" / "finder.py"))
    finder["ensure_importable"](PACKAGE_DIR)
    protocol = importlib.import_module("bftrainer.ground.protocol")
    library = importlib.import_module("bftrainer.elastic.mpi.library")
    channel.set_inheritable(False)
    config = protocol.from_body(json.loads(first_line(channel))["config"])
    library.serve_pmi(f"bft-{config.worker_id}-{os.uname().nodename}-{os.getpid()}")
    keeper = importlib.import_module("bftrainer.elastic.process.worker_keeper")
    keeper.name_shared(keeper.own_place(os.getpid()))  # the agent removes what is left
    control = importlib.import_module("bftrainer.elastic.process.control").start(config, channel)
    worker = importlib.import_module("bftrainer.elastic.worker")
    return int(worker.serve(config, control, library.begin))  # does not return


if __name__ == "__main__":
    sys.exit(main())
