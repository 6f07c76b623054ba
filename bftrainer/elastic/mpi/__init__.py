"""The interface of an elastic MPI program: a loop, and the state that is handed over.

The program gives ``Run`` its arrays and a step function; members join and leave between two
steps. See docs/howto/train-mpi.md. Importing this package does not import MPI; ``Run`` does.
"""

from __future__ import annotations

from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.mpi.comm import Comm, GroupBroken
from bftrainer.elastic.mpi.membership import Change
from bftrainer.elastic.mpi.run import Run
from bftrainer.elastic.mpi.state import BlockRows

__all__ = ["BlockRows", "Change", "Comm", "ElasticError", "GroupBroken", "Run"]
