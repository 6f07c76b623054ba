"""Loads the MPI library of the user's interpreter such that a process can leave alone.

mpi4py must not finalise MPI by itself: MPI_Finalize waits for every process this one was ever
connected to, including dead ones. A worker never calls it; a launched program does if no member
was lost (``standalone``). Called by ``boot`` before the user's script, and by ``Run``.
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
# MPICH has two network layers. With UCX, its default, a survivor crashes when a peer dies during
# a message of some kB (3 of 12 losses); with libfabric it may hang, which ``reduce`` makes rare
# and ``membership`` detects. libfabric's tcp provider is the one we tested: with its default on a
# host without a fast network, a split took 31 s.
NETWORK = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
SHARED_MEMORY = "/dev/shm/mpich_shm_"  # noqa: S108 - MPICH's names, with a random end


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
