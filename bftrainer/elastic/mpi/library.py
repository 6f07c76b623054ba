"""Loads the MPI library of the user's interpreter such that a process can leave alone.

mpi4py must not finalise MPI by itself: MPI_Finalize waits for every process this one was ever
connected to, including dead ones. A worker never calls it; a launched program does if no member
was lost (``Launched``). Called by ``boot`` before the user's script, and by ``Run``.

MPICH asks a process manager for its rank and for the name of its world. Without one every
process gets the same name, and two of them cannot connect ("local and remote groups overlap",
MPICH 5.0.2). So a small child process answers: rank 0 of 1, in a uniquely named world. The
protocol is PMI-1: ``cmd=... key=value`` lines on the descriptor in ``PMI_FD`` (MPICH 5 sources,
src/pmi).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

from bftrainer.ground.errors import ElasticError

OLDEST_MPICH = (5, 0)
# MPICH has two network layers. With UCX, its default, a survivor crashes when a peer dies during
# a message of some kB (3 of 12 losses); with libfabric it may hang, which ``MpiReducer`` makes rare
# and ``membership`` detects. libfabric's tcp provider is the one we tested: with its default on a
# host without a fast network, a split took 31 s.
NETWORK = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
SHARED_MEMORY = "/dev/shm/mpich_shm_"  # noqa: S108 - MPICH's names, with a random end
_LIMITS = "kvsname_max=256 keylen_max=64 vallen_max=4096"


def load() -> Any:
    """Return ``mpi4py.MPI``, initialised; unchanged if the script has already loaded it.

    Raises:
        ElasticError: BFT-1441 when the interpreter has no mpi4py or it finds no MPI.
    """
    try:
        if "mpi4py.MPI" not in sys.modules:
            os.environ.update({**NETWORK, **os.environ})
            importlib.import_module("mpi4py").rc.finalize = False
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as problem:
        raise ElasticError(
            "BFT-1441",
            f"The interpreter {sys.executable} cannot load MPI: {problem}.",
            "Install mpi4py and mpich there (pip install mpi4py mpich), or name another"
            " interpreter: submit --interpreter PATH.",
        ) from None


def begin() -> None:
    """Load MPI in a worker, before its script."""
    require_connecting(load())
    unlink_shared_memory()
    for name in ("PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_ID"):
        os.environ.pop(name, None)  # not for programs that the script starts


def require_connecting(mpi: Any) -> None:
    """Refuse an MPI that cannot connect processes started separately.

    Raises:
        ElasticError: BFT-1442 for anything but MPICH 5 or later.
    """
    name, version = mpi.get_vendor()
    if name == "MPICH" and tuple(version[:2]) >= OLDEST_MPICH:
        return
    raise ElasticError(
        "BFT-1442",
        f"{name} {'.'.join(map(str, version))} cannot connect processes that were started one by"
        " one; MPICH 5 can.",
        "Install mpich>=5 in the interpreter (pip), or use --runtime command with mpirun: the"
        " program is then resized by restart.",
    )


def unlink_shared_memory() -> None:
    """Unlink the shared memory that MPICH opened on the node; it is freed with this process.

    Called right after MPI was initialised in a world of one process, so no other process needs
    its name. MPI_Finalize would remove it, but is never called here; a megabyte per worker that
    ever ran would stay on the node (MPICH 5.0).
    """
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one of this loop is closed by now
            target = descriptor.readlink()
            if str(target).startswith(SHARED_MEMORY):
                target.unlink()


def touch(mpi: Any) -> None:
    """Take and release MPICH's global lock; blocks if a call that holds it does not end.

    Opening a port is the cheapest call we found that takes it (50 us). Probing COMM_SELF or
    COMM_WORLD of one process, or duplicating it, does not (MPICH 5.0).
    """
    mpi.Close_port(mpi.Open_port())


class OneProcess:
    """The manager's answers, and the key-value space of one world."""

    def __init__(self, world: str) -> None:
        self._values: dict[str, str] = {}
        self._fixed = {
            "init": "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": f"maxes {_LIMITS}",
            "get_appnum": "appnum appnum=0 rc=0",
            "get_universe_size": "universe_size size=1 rc=0",
            "get_my_kvsname": f"my_kvsname kvsname={world} rc=0",
            "barrier_in": "barrier_out rc=0",
            "finalize": "finalize_ack rc=0",
        }

    def answer(self, line: str) -> str:
        """Return the reply to one request, both without their newline."""
        arguments = dict(part.split("=", 1) for part in line.split() if "=" in part)
        command, key = arguments.get("cmd", ""), arguments.get("key", "")
        if command == "put":
            self._values[key] = arguments.get("value", "")
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            value = self._values.get(key)
            if value is None:
                return "cmd=get_result rc=-1 msg=unknown_key"
            return f"cmd=get_result rc=0 msg=success value={value}"
        return f"cmd={self._fixed.get(command, f'{command} rc=-1 msg=not_supported')}"


def serve_pmi(world: str) -> None:
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
