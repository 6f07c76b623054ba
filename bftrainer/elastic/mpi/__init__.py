"""What an elastic MPI program imports: a loop, and the state that is handed over.

Arrays and a step function come in through ``Run``; members join and leave between two
steps. See docs/howto/train-mpi.md. Importing this package imports no MPI: ``Run`` does.
"""

from __future__ import annotations

from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.mpi.comm import Comm, GroupBroken
from bftrainer.elastic.mpi.membership import Change
from bftrainer.elastic.mpi.run import Run
from bftrainer.elastic.mpi.state import BlockRows

__all__ = ["BlockRows", "Change", "Comm", "ElasticError", "GroupBroken", "Run"]
