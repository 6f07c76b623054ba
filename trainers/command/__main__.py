"""``python -I -m trainers.command FD``: started by an agent as a worker.

FD is the worker's end of a socket to the agent; its first line is the configuration.
"""

from __future__ import annotations

import signal
import socket
import sys

from bftrainer.elastic.process.worker_keeper import adopt
from trainers.command.keeper import Keeper

if __name__ == "__main__":
    # Children inherit the agent's blocked signals; programs must not.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    adopt()
    sys.exit(Keeper(socket.socket(fileno=int(sys.argv[1]))).run())
