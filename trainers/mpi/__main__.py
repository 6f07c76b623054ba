"""``python -I -m trainers.mpi FD``: started by an agent; replaces itself by the user's interpreter.

The first line on FD names the interpreter; it stays in the socket for
``bftrainer/elastic/mpi/boot.py``, which that interpreter runs.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import bftrainer
from bftrainer.batch import process
from bftrainer.elastic.mpi.boot import first_line
from bftrainer.ground import protocol
from bftrainer.model.preamble import under
from trainers.agent.preambles import Preamble
from trainers.agent.start import usual_environment

BOOT = Path(bftrainer.__file__).resolve().parent / "elastic" / "mpi" / "boot.py"


def main() -> int:
    """Execute the worker in this process; return only if that fails."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    orders = json.loads(first_line(channel, stays=True))
    interpreter = str(orders["options"]["interpreter"])
    preamble = Preamble.of(orders)
    channel.set_inheritable(True)
    argv: tuple[str, ...] = (interpreter, str(BOOT), str(channel.fileno()))
    try:
        if preamble.path:
            os.chdir(preamble.cwd)
            argv = under(preamble.path, argv)
        process.become(argv, env={**usual_environment(), **dict(preamble.environment)})
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
