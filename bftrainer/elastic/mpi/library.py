"""The MPI library of the user's interpreter, loaded so that a process can leave it.

Nothing comes in; the module ``mpi4py.MPI`` goes out. It is not finalised by itself:
MPI_Finalize waits for everybody this process was ever connected to, dead members included.
A worker never does it; a program that was launched does where nobody was lost (``launched``).
Called by ``boot`` before the user's script, and by ``Run``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from bftrainer.elastic.errors import ElasticError

OLDEST_MPICH = (5, 0)
# MPICH has two network layers. With UCX, which it prefers, a survivor crashes when a peer dies
# in the middle of a message of some kB (3 of 12 losses); with libfabric it may hang, which
# ``reduce`` makes rare and ``membership`` notices. Of libfabric's providers tcp is the one that
# was tried: with the one it takes by itself on a host without fast network, a split took 31 s.
NETWORK = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
SHARED_MEMORY = "/dev/shm/mpich_shm_"  # noqa: S108 - MPICH's names, with a random end


def load() -> Any:
    """Return ``mpi4py.MPI``, initialised; where it was loaded before, as it was loaded then.

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


def require_connecting(mpi: Any) -> None:
    """Refuse an MPI whose processes cannot find each other after they were started.

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
    """Take the name off the memory MPICH shares on a node; the memory goes with this process.

    Called right after the library was initialised in a process that is a world of its own:
    nobody else has to find it. MPI_Finalize would remove it, but nobody calls that here; a
    megabyte of every worker that ever ran would stay on the node (MPICH 5.0).
    """
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of this loop is gone by now
            target = descriptor.readlink()
            if str(target).startswith(SHARED_MEMORY):
                target.unlink()


def touch(mpi: Any) -> None:
    """Take MPICH's one lock and give it back: for ever where a call inside it does not end.

    Opening a port is the cheapest call found that needs it (50 us). Probing COMM_SELF,
    COMM_WORLD of one process, or duplicating it, do not (MPICH 5.0).
    """
    mpi.Close_port(mpi.Open_port())
