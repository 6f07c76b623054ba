"""The interface of an elastic MPI program: a loop, and the state that is handed over.

The program gives ``Run`` its arrays and a step function; members join and leave between two
steps. See docs/howto/train-mpi.md. Importing this package is cheap, and does not import MPI: the
agent's side imports ``boot`` of it. ``Run`` imports NumPy, and MPI when it is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bftrainer.ground.errors import ElasticError

if TYPE_CHECKING:
    from bftrainer.elastic.mpi.comm import Comm, GroupBroken
    from bftrainer.elastic.mpi.membership import Change
    from bftrainer.elastic.mpi.run import Run
    from bftrainer.elastic.mpi.state import BlockRows

__all__ = ["BlockRows", "Change", "Comm", "ElasticError", "GroupBroken", "Run"]

_HOMES = {
    "BlockRows": "state",
    "Change": "membership",
    "Comm": "comm",
    "GroupBroken": "comm",
    "Run": "run",
}


def __getattr__(name: str) -> Any:
    """Import names that need NumPy on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
