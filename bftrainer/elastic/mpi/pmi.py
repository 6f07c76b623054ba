"""A process manager for one process, so that MPICH starts without ``mpiexec``.

MPICH asks a process manager for its rank and for the name of its world. Without one every
process gets the same name, and two of them cannot connect ("local and remote groups overlap",
MPICH 5.0.2). So a small child process answers: rank 0 of 1, in a uniquely named world. The
protocol is PMI-1: ``cmd=... key=value`` lines on the descriptor in ``PMI_FD`` (MPICH 5 sources,
src/pmi). Called by ``boot``. Standard library only.
"""

from __future__ import annotations

import os
import socket

_LIMITS = {"kvsname_max": 256, "keylen_max": 64, "vallen_max": 4096}


class OneProcess:
    """The manager's answers, and the key-value space of one world."""

    def __init__(self, world: str) -> None:
        self._values: dict[str, str] = {}
        self._fixed = {
            "init": "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": "maxes " + " ".join(f"{k}={v}" for k, v in _LIMITS.items()),
            "get_appnum": "appnum appnum=0 rc=0",
            "get_universe_size": "universe_size size=1 rc=0",
            "get_my_kvsname": f"my_kvsname kvsname={world} rc=0",
            "barrier_in": "barrier_out rc=0",
            "finalize": "finalize_ack rc=0",
        }

    def answer(self, line: str) -> str:
        """Return the reply to one request, both without their newline."""
        asked = dict(part.split("=", 1) for part in line.split() if "=" in part)
        command, key = asked.get("cmd", ""), asked.get("key", "")
        if command == "put":
            self._values[key] = asked.get("value", "")
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            value = self._values.get(key)
            known = f"rc=0 msg=success value={value}"
            return f"cmd=get_result {'rc=-1 msg=unknown_key' if value is None else known}"
        return f"cmd={self._fixed.get(command, f'{command} rc=-1 msg=not_supported')}"


def serve(world: str) -> None:
    """Start a process manager for this process: a child that ends with it.

    Not a thread, because ``MPI_Init`` holds the interpreter lock. Call it before ``MPI_Init``
    and before there are threads.

    Args:
        world: a name unique among connected processes, without white space.
    """
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            _answer_all(ours, world)
        finally:
            os._exit(0)
    ours.close()
    os.environ.update(PMI_FD=str(theirs.detach()), PMI_RANK="0", PMI_SIZE="1", PMI_ID="0")


def _answer_all(end: socket.socket, world: str) -> None:
    os.closerange(3, end.fileno())
    os.closerange(end.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    manager = OneProcess(world)
    with end, end.makefile("rwb") as stream:
        for line in stream:
            stream.write(manager.answer(line.decode(errors="replace")).encode() + b"\n")
            stream.flush()
