"""The command arm of ``bench_runtimes``: the example program, its steps recorded.

Its model has two parameters: what is measured is the restart, not the state.
"""

from __future__ import annotations

import sys

from step_records import Records

from trainers.examples import command_sgd as sgd

STEP_S = 0.02  # shared by the nodes, as the work of a step is


def main() -> int:
    """Train until asked to stop."""
    records = Records()
    one_step = sgd.one_step

    def recorded(state: sgd.State, ring: sgd.Ring, rank: int, size: int, batch: int) -> bool:
        is_stopping = one_step(state, ring, rank, size, batch)
        records.write(state.step, 0, size, rank)
        return is_stopping

    sgd.one_step = recorded
    sys.argv[1:] = ["--steps", str(10**9), "--pause", str(STEP_S)]
    return sgd.main()


sys.exit(main())
