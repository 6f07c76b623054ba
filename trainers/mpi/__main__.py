"""``python -I -m trainers.mpi FD``: started by an agent; replaces itself by the user's interpreter.

The first line on FD names the interpreter; it stays in the socket for ``elastic/mpi/boot.py``,
which that interpreter runs.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import bftrainer
from bftrainer import process
from bftrainer.elastic import protocol
from bftrainer.elastic.mpi.boot import first_line
from trainers.agent.starting import usual_environment

BOOT = Path(bftrainer.__file__).resolve().parent / "elastic" / "mpi" / "boot.py"


def main() -> int:
    """Execute the worker in this process; return only if that fails."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    interpreter = str(json.loads(first_line(channel, stays=True))["options"]["interpreter"])
    channel.set_inheritable(True)
    try:
        process.become((interpreter, str(BOOT), str(channel.fileno())), env=usual_environment())
    except OSError as problem:
        failed = protocol.Failed(
            code="BFT-1411",
            cause=f"The interpreter {interpreter} cannot be started: {problem}.",
            next_step="Name one that exists on the node: submit --interpreter PATH.",
        )
        channel.sendall(protocol.encode(failed))
    return 1


if __name__ == "__main__":
    sys.exit(main())
