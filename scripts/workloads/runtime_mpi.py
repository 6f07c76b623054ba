"""The MPI arm of ``bench_runtimes``: sums of gradients of made-up data, its steps recorded.

Argument: ``big`` (25 M parameters with momentum, 200 MB of state) or ``small`` (10 k). Also run
by ``mpirun`` of any MPI, resized by restart then.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from step_records import Records

from bftrainer.elastic import mpi

STEP_S = 0.02  # shared by the members, as the work of a step is
N_PARAMETERS = {"big": 25_000_000, "small": 10_000}


def main() -> None:
    """Train until killed."""
    n = N_PARAMETERS[sys.argv[1]]
    weights, velocity = np.zeros(n, np.float32), np.zeros(n, np.float32)
    gradient, total = np.ones(n, np.float32), np.zeros(n, np.float32)
    records = Records()

    def step(run: mpi.Run) -> None:
        time.sleep(STEP_S / run.size)
        run.comm.Allreduce(gradient, total)
        velocity[:] = 0.9 * velocity + total / run.size
        weights[:] -= 1e-4 * velocity
        records.write(run.step + 1, run.generation, run.size, run.rank)

    state = {"weights": weights, "velocity": velocity}
    # Nothing changes before the one exchange of a step: no copy is needed.
    mpi.Run(replicated=state, guards=False).loop(step, steps=10**9)


main()
